// Orders of an operator, as `tailer pause` and the others give them. The token is kept until the page is left, and only
// travels in a header.

const takesOrders = document.body.dataset.orders === "on";
const QUIET = ["paused", "stopped", "standby"];
const hasBackfill = (found) => Boolean(found.backfill && ["waiting", "running"].includes(found.backfill.phase));

const ORDERS = {
  "pause": {
    label: "Pause", fits: (found) => !QUIET.includes(found.state),
    means: "It finishes its transaction. Then it is paused until it is resumed, or until the daemon is started again.",
  },
  "resume": {
    label: "Resume", fits: (found) => ["paused", "stopped"].includes(found.state),
    means: "It goes on after the progress of its sink.",
  },
  "skip": {
    label: "Skip lost changes", fits: (found) => found.state === "stopped",
    means: "It reports the gap to the sink and goes on after it, once. Changes in the gap are not delivered.",
  },
  "resnapshot": {
    label: "Resnapshot", fits: (found) => !["waiting", "standby"].includes(found.state),
    means: "It reports a gap to the sink, and then delivers all rows of the newest version.",
  },
  "backfill": {
    label: "Backfill", fits: (found) => !hasBackfill(found) && !["waiting", "standby"].includes(found.state),
    means: "It delivers rows of a version again, marked as read and not as changed. Later changes wait until the backfill ends.",
  },
  "cancel-backfill": {
    label: "Cancel backfill", fits: hasBackfill,
    means: "The backfill ends. Rows that were delivered stay.",
  },
};

const asked = { name: "", verb: "" };

// Buttons stay the same elements, to keep the focus.
function showOrders(target, found) {
  if (!target.children.length) {
    target.append(element("h3", { textContent: "Control" }));
    if (!takesOrders) {
      const text = "From a terminal: tailer pause, resume, resnapshot, backfill and skip. For buttons here, set control_token_file.";
      target.append(element("p", { className: "soft", textContent: text }));
      return;
    }
    const buttons = Object.entries(ORDERS).map(([verb, each]) => {
      const button = element("button", { type: "button", "data-verb": verb, textContent: `${each.label} …` });
      button.addEventListener("click", () => askForOrder(found.name, verb));
      return button;
    });
    target.append(element("div", { className: "orders", role: "group", ariaLabel: `Orders to ${found.name}` }, ...buttons));
  }
  for (const button of target.querySelectorAll("button")) button.hidden = !ORDERS[button.dataset.verb].fits(found);
}

function askForOrder(name, verb) {
  Object.assign(asked, { name, verb });
  put($("order-title"), `${ORDERS[verb].label}: ${name}`);
  put($("order-means"), ORDERS[verb].means);
  put($("order-give"), ORDERS[verb].label);
  put($("order-cancel"), "Cancel");
  $("order-rows").hidden = verb !== "backfill";
  $("order-token-row").hidden = $("order-give").hidden = false;
  $("order-plain").hidden = window.isSecureContext;
  showAnswer("", "");
  $("order").showModal();
  ($("order-token").value ? $("order-give") : $("order-token")).focus();
}

function showAnswer(text, kind) {
  put($("order-answer"), text);
  $("order-answer").className = kind;
}

async function giveOrder() {
  const body = {};
  if (asked.verb === "backfill") {
    if ($("order-version").value) body.version = Number($("order-version").value);
    if ($("order-where").value.trim()) body.where = $("order-where").value.trim();
  }
  $("order-give").disabled = true;
  showAnswer("Waiting for the daemon …", "");
  const [done, text] = await send(body);
  $("order-give").disabled = false;
  showAnswer(text, done ? "done" : "refused");
  if (done) {
    $("order-give").hidden = $("order-rows").hidden = $("order-token-row").hidden = true;
    put($("order-cancel"), "Close");
    $("order-cancel").focus();
    refresh();
  }
}

async function send(body) {
  try {
    const answer = await fetch(`/pipelines/${encodeURIComponent(asked.name)}/${asked.verb}`, {
      method: "POST", body: Object.keys(body).length ? JSON.stringify(body) : undefined,
      headers: { Authorization: `Bearer ${$("order-token").value.trim()}` },
      credentials: "omit", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(30000),
    });
    if (answer.status === 401) return [false, "The token is wrong: it is the text in the file that control_token_file names."];
    const text = await answer.text();
    return [answer.ok, text.startsWith("{") ? JSON.parse(text).message : `The daemon answered ${answer.status}.`];
  } catch {
    return [false, "The daemon did not answer. It may have obeyed: look at the state of the pipeline."];
  }
}

$("order-form").addEventListener("submit", (event) => { event.preventDefault(); giveOrder(); });
$("order-cancel").addEventListener("click", () => $("order").close());
