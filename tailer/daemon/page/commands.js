// Commands of an operator, as `tailer pause` and the others give them. The token is kept until the page is left, and only
// travels in a header.

const takesCommands = document.body.dataset.commands === "on";
const QUIET = ["paused", "stopped", "standby"];
const hasBackfill = (found) => Boolean(found.backfill && ["waiting", "running"].includes(found.backfill.phase));

const COMMANDS = {
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
function showCommands(target, found) {
  if (!target.children.length) {
    target.append(element("h3", { textContent: "Control" }));
    if (!takesCommands) {
      const text = "From a terminal: tailer pause, resume, resnapshot, backfill and skip. For buttons here, set control_token.";
      target.append(element("p", { className: "soft", textContent: text }));
      return;
    }
    const buttons = Object.entries(COMMANDS).map(([verb, each]) => {
      const button = element("button", { type: "button", "data-verb": verb, textContent: `${each.label} …` });
      button.addEventListener("click", () => askForCommand(found.name, verb));
      return button;
    });
    target.append(element("div", { className: "commands", role: "group", ariaLabel: `Commands to ${found.name}` }, ...buttons));
  }
  for (const button of target.querySelectorAll("button")) button.hidden = !COMMANDS[button.dataset.verb].fits(found);
}

function askForCommand(name, verb) {
  Object.assign(asked, { name, verb });
  put($("command-title"), `${COMMANDS[verb].label}: ${name}`);
  put($("command-means"), COMMANDS[verb].means);
  put($("command-give"), COMMANDS[verb].label);
  put($("command-cancel"), "Cancel");
  $("command-rows").hidden = verb !== "backfill";
  $("command-token-row").hidden = $("command-give").hidden = false;
  $("command-plain").hidden = window.isSecureContext;
  showAnswer("", "");
  $("command").showModal();
  ($("command-token").value ? $("command-give") : $("command-token")).focus();
}

function showAnswer(text, kind) {
  put($("command-answer"), text);
  $("command-answer").className = kind;
}

async function giveCommand() {
  const body = {};
  if (asked.verb === "backfill") {
    if ($("command-version").value) body.version = Number($("command-version").value);
    if ($("command-where").value.trim()) body.where = $("command-where").value.trim();
  }
  $("command-give").disabled = true;
  showAnswer("Waiting for the daemon …", "");
  const [done, text] = await send(body);
  $("command-give").disabled = false;
  showAnswer(text, done ? "done" : "refused");
  if (done) {
    $("command-give").hidden = $("command-rows").hidden = $("command-token-row").hidden = true;
    put($("command-cancel"), "Close");
    $("command-cancel").focus();
    refresh();
  }
}

async function send(body) {
  try {
    const answer = await fetch(`/pipelines/${encodeURIComponent(asked.name)}/${asked.verb}`, {
      method: "POST", body: Object.keys(body).length ? JSON.stringify(body) : undefined,
      headers: { Authorization: `Bearer ${$("command-token").value.trim()}` },
      credentials: "omit", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(30000),
    });
    if (answer.status === 401) return [false, "The token is wrong: it is the one that control_token gives."];
    const text = await answer.text();
    return [answer.ok, text.startsWith("{") ? JSON.parse(text).message : `The daemon answered ${answer.status}.`];
  } catch {
    return [false, "The daemon did not answer. It may have obeyed: look at the state of the pipeline."];
  }
}

$("command-form").addEventListener("submit", (event) => { event.preventDefault(); giveCommand(); });
$("command-cancel").addEventListener("click", () => $("command").close());
