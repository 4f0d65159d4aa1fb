// What is below the row of a pipeline.

function backfill(found) {
  const version = found.version === null ? "" : ` of version ${found.version}`;
  const files = found.files === null ? "" : `, ${number(found.files_done)} of ${plural(found.files, "file")}`;
  const where = found.where === null ? "" : ` where ${found.where}`;
  return `${found.phase}${version}${where}${files}${found.error ? `: ${found.error.name}: ${found.error.text}` : ""}`;
}

function facts(found) {
  const kinds = Object.entries(found.rows).filter(([, many]) => many).map(([kind, many]) => `${number(many)} ${kind}`);
  const error = found.last_error;
  const listed = [
    ["In this state since", clock(found.since)],
    ["Position", found.position || "nothing delivered yet"],
    ["Delivered up to version", number(found.delivered)],
    ["Newest version known", number(found.latest)],
    ["Planned, not committed", bytes(found.lag.bytes)],
    ["Rows since the start", kinds.join(", ") || "none"],
    ["Transactions since the start", number(found.transactions)],
  ];
  if (found.backfill) listed.push([found.backfill.kind === "snapshot" ? "Snapshot" : "Backfill", backfill(found.backfill)]);
  if (found.retry_at) listed.push(["Begins again", clock(found.retry_at)]);
  const list = element("dl", {}, ...listed.map(([term, text]) =>
    element("div", {}, element("dt", { textContent: term }), element("dd", { textContent: text }))));
  // The error of the present state is in the row above.
  if (!error || found.why.includes(error.text)) return [list];
  return [list, element("div", { className: "why" }, element("h3", { textContent: `Last error, ${clock(error.at)}` }),
    element("b", { textContent: `${error.name}: ${error.text}` }), element("span", { className: "hint", textContent: error.hint }))];
}

// What took how long until the last versions were in the sink.
const STAGES = [["plan", "Planned"], ["read", "Read"], ["deliver", "Delivered"]], SHOWN = 12;

function exactly(seconds) {
  if (seconds === null || seconds >= 60 || seconds < .0005) return span(seconds && Math.round(seconds));
  return `${seconds.toFixed(seconds < 1 ? 3 : 1)} s`;
}

function journeys(found) {
  const heads = ["Version", "Committed", "Waited"].map((title) => element("th", { scope: "col", className: title.toLowerCase(), textContent: title }));
  for (const [stage, title] of STAGES) {
    heads.push(element("th", { scope: "col" }, element("span", { className: `key ${stage}`, ariaHidden: "true", textContent: "■" }), title));
  }
  const lines = found.slice(0, SHOWN).map((each) => {
    const begun = Date.parse(each.begun), appeared = each.appeared === null ? null : Date.parse(each.appeared);
    const waited = appeared === null ? null : Math.max(begun - appeared, 0) / 1000;
    const versions = each.first === each.last ? String(each.last) : `${each.first} – ${each.last}`;
    const cells = [appeared === null ? "–" : clock(appeared), exactly(waited), ...STAGES.map(([stage]) => exactly(each[`${stage}_s`]))];
    return element("tr", {}, element("th", { scope: "row", textContent: versions }),
      ...cells.map((text, index) => element("td", { className: index ? "" : "committed", textContent: text })), element("td", { className: "bar", ariaHidden: "true" }, bar(each)));
  });
  return element("div", {}, element("h3", { textContent: "The way of the last versions" }),
    element("p", { className: "soft", textContent: "How long the commit waited for the daemon, planning took, its rows were awaited, and writing them to the sink took." }),
    element("div", { className: "scrolls", tabIndex: 0, role: "region", ariaLabel: "The way of the last versions" },
      element("table", { className: "journeys", ariaLabel: "The way of the last versions" },
        element("thead", {}, element("tr", {}, ...heads, element("td", { className: "bar", ariaHidden: "true" }))),
        element("tbody", {}, ...lines))));
}

function bar(journey) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const total = STAGES.reduce((sum, [stage]) => sum + (journey[`${stage}_s`] || 0), 0) || 1;
  let x = 0;
  svg.setAttribute("viewBox", "0 0 100 8");
  svg.setAttribute("preserveAspectRatio", "none");
  for (const [stage] of STAGES) {
    const part = document.createElementNS(svg.namespaceURI, "rect"), width = (journey[`${stage}_s`] || 0) / total * 100;
    for (const [name, value] of [["class", stage], ["x", x], ["width", width], ["height", 8]]) part.setAttribute(name, value);
    svg.append(part);
    x += width;
  }
  return svg;
}

async function showDetails(name) {
  const found = status.pipelines.find((each) => each.name === name), parts = rows.get(name);
  if (!found || !parts) return;
  if (!details.has(name)) {
    const id = `details-${details.size}-${Date.now()}`;
    const made = { facts: element("div"), commands: element("div"), journeys: element("div") };
    made.row = element("tr", { className: "details", id, ariaLabel: `Details of ${name}` }, element("td", { colSpan: 5 }, made.facts, made.commands, made.journeys));
    parts.name.setAttribute("aria-controls", id);
    details.set(name, made);
  }
  const made = details.get(name);
  const now = facts(found);
  if (made.facts.textContent !== now.map((each) => each.textContent).join("")) made.facts.replaceChildren(...now);
  showCommands(made.commands, found);
  if (made.asked && Date.now() - made.asked < HISTORY_MS && made.delivered === found.delivered) return;
  made.asked = Date.now();
  made.delivered = found.delivered;
  const past = await ask(`/history?pipeline=${encodeURIComponent(name)}`);
  made.journeys.replaceChildren(...(past && past.journeys.length ? [journeys(past.journeys)] : []));
}
