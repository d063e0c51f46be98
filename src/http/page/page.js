// What asks and shows. Rates are computed from one answer to the next; a counter that is lower than before began anew.
const counters = new Map();
let last = null, samples = [], fell = [], partitionCount = 1, shardCount = 1;
function rate(key, value, seconds) {
  const known = counters.get(key) || { value: null, rates: [] };
  if (known.value !== null && seconds > 0) {
    known.rates.push(Math.max(0, value - known.value) / seconds);
    if (known.rates.length > 3) known.rates.shift();
  }
  known.value = value;
  counters.set(key, known);
  return known.rates.length ? known.rates.reduce((a, b) => a + b) / known.rates.length : 0;
}
const sum = (items, of) => items.reduce((total, item) => total + of(item), 0);
const lagOf = p => p.end === null ? null : Math.max(0, p.end - p.position);

function head(status) {
  const board = status.board, good = status.problems.length === 0;
  document.title = (good ? "" : "! ") + status.pipeline + " · Strandline";
  say($("pipeline"), status.pipeline);
  say($("meta"), `version ${status.version} · ${board.owner ? "standby" : "generation " + board.generation} · up ${time(status.uptime_seconds)}`);
  $("health").className = "pill " + (good ? "good" : "bad");
  say($("health"), good ? "healthy" : "unhealthy");
  $("ready").hidden = status.waiting_for.length === 0 && !board.paused;
  $("ready").className = "pill warn";
  say($("ready"), board.paused ? "paused" : board.owner ? "standby" : "not ready");
  list($("problems"), status.problems);
  list($("waiting"), status.waiting_for.slice(0, 12));
}

function show(status, connectors, balance) {
  const now = performance.now(), seconds = last === null ? 0 : (now - last) / 1000;
  last = now;
  head(status);
  const board = status.board, partitions = board.partitions, shards = Object.entries(board.shards);
  partitionCount = partitions.length;
  shardCount = shards.length;
  partitions.sort((a, b) => a.topic < b.topic ? -1 : a.topic > b.topic ? 1 : a.partition - b.partition);
  const actors = [board.supervisor, board.committer.actor, ...shards.map(([, s]) => s.actor), ...partitions.map(p => p.actor)];
  const restarts = sum(actors, a => a.restarts), lag = sum(partitions, p => lagOf(p) || 0), oldest = Math.max(0, ...partitions.map(p => p.lag_seconds || 0));
  const ages = shards.map(([, s]) => s.committed).filter(age => age !== null);
  const records = rate("records", sum(partitions, p => p.rows), seconds), volume = rate("bytes", sum(partitions, p => p.bytes), seconds);
  const marks = shards.map(([, s]) => s.watermark).filter(mark => mark !== null);
  const tile = (id, label, value, note) => el("div", { class: "tile", id: "tile-" + id }, el("div", { class: "label" }, label),
    el("div", { class: "value" }, value), el("div", { class: "note" }, note));
  fill($("tiles"),
    tile("records", "records a second", short(records), bytes(volume) + " a second"),
    tile("lag", "lag", whole(lag), lag > 0 && oldest > 0 ? `up to ${time(oldest)} old` : `${whole(sum(partitions, p => p.rows))} records read`),
    tile("checkpoint", "last checkpoint", ages.length ? ago(Math.max(...ages)) : "none yet", `${whole(board.committer.commits)} committed`),
    tile("state", "state", whole(sum(shards, ([, s]) => s.keys)) + " keys", bytes(sum(shards, ([, s]) => s.bytes))),
    marks.length ? tile("watermark", "watermark", time(Math.max(0, Date.now() / 1000 - Math.min(...marks) / 1e9)), "behind the clock") : null,
    tile("restarts", "restarts", whole(restarts), `${actors.filter(a => a.life === "running").length} of ${actors.length} actors run`));

  flow(status, connectors, records, volume, seconds);
  table($("partitions"), [["partition"], ["does"], ["position", "n"], ["end", "n"], ["lag", "n"], ["records/s", "n"], ["watermark"]], partitions.map(p => {
    const behind = lagOf(p);
    return [`${p.topic}-${p.partition}`, el("span", {}, dot(p.actor.life), p.actor.life === "running" ? words(p.activity) : words(p.actor.life)),
      whole(p.position), p.end === null ? "?" : whole(p.end), behind === null ? "?" : whole(behind),
      short(rate(`p/${p.topic}/${p.partition}`, p.rows, seconds)), watermark(p.watermark)];
  }));
  table($("shards"), [["shard"], ["epoch", "n"], ["last checkpoint", "n"], ["took", "n"], ["size", "n"], ["keys", "n"], ["state", "n"], ["rows/s", "n"], ["replays dropped", "n"], ["watermark"]],
    shards.map(([n, s]) => [el("span", {}, dot(s.actor.life), n), whole(s.epoch), ago(s.committed), millis(s.checkpoint_micros), bytes(s.checkpoint_bytes),
      whole(s.keys), bytes(s.bytes), short(rate("s/" + n, s.rows, seconds)), whole(s.replays), watermark(s.watermark)]));
  // Inserts and sinks have the same order; a demo counts no sinks.
  const sinks = status.sinks, inserts = status.inserts;
  table($("inserts"), [["table"], ["rows taken", "n"], ["left out", "n"], ["late", "n"], ["written", "n"], ["removed", "n"], ["refused", "n"]],
    inserts.map((insert, i) => {
      const sink = sinks[i], count = of => sink ? whole(of(sink)) : "not counted";
      return [insert.table, whole(insert.processed), whole(insert.filtered), whole(insert.late + insert.late_closed),
        count(s => s.upserts), count(s => s.deletes), count(s => s.refused)];
    }));
  const all = [...connectors.sources.map(c => ["source", c]), ...connectors.sinks.map(c => ["sink", c]), ["store", connectors.store]];
  table($("connectors"), [["connector"], ["where"], ["state"], ["retries", "n"], ["last error", "wide"]], all.map(([role, c]) =>
    [role === "store" ? "store" : `${role} ${c.table}`, c.location, state(c.state), whole(c.retries),
      c.last_error ? (c.last_error.at === null ? "" : clock(c.last_error.at) + " ") + c.last_error.what : "none"]));
  const rest = o => o.late_closed + o.skipped + o.lost;
  table($("balance"), [["partition"], ["passed", "n"], ["counted", "n"], [""], ["processed", "n"], ["filtered", "n"], ["late", "n"], ["dead letters", "n"], ["tombstones", "n"], ["gaps", "n"], ["others", "n"]],
    balance.map(b => { const o = b.offsets; return [`${b.topic}-${b.partition}`, whole(b.committed - b.from), whole(b.counted),
      b.unbalanced ? el("span", { class: "over" }, "does not add up") : el("span", { class: "equal" }, b.committed === b.committed_highest ? "adds up" : "adds up, between two commits"),
      ...[o.processed, o.filtered, o.late, o.dead_lettered, o.tombstone, o.gap, rest(o)].map(whole)]; }));
  const lines = wanted => [...board.events].reverse().filter(e => wanted(e.kind)).slice(0, 60).map(e => [clock(e.at), e.actor, e.what]);
  const columns = [["time"], ["actor"], ["cause", "wide"]];
  table($("restarts"), columns, lines(kind => kind !== "note"), "none so far");
  table($("events"), [["time"], ["actor"], ["event", "wide"]], lines(kind => kind === "note"));
  table($("letters"), [["record's time"], ["partition"], ["offset", "n"], ["reason", "wide"]], [...board.dead_letters].reverse().map(l =>
    [new Date(l.timestamp).toLocaleString(), `${l.topic}-${l.partition}`, whole(l.offset), l.reason]), "none; earlier ones: strandline dead-letters list");
  if (status.demo) demo(status.demo);
}

function flow(status, connectors, records, volume, seconds) {
  const board = status.board, partitions = board.partitions, shards = Object.entries(board.shards);
  const outside = (c, what) => ({ name: c.table, life: c.state, what, error: c.last_error && c.last_error.what });
  const inside = (name, actor, what) => ({ name, life: actor.life, what: actor.life === "running" ? what : words(actor.life), restarts: actor.restarts, error: actor.last_error });
  const written = connectors.sinks.map(c => c.upserts === null ? null : rate("w/" + c.table, c.upserts + c.deletes, seconds));
  const s = board.supervisor;
  say($("supervisor"), `The supervisor is ${words(s.life)} and starts again whatever dies` + (s.restarts ? `; it died ${s.restarts} times itself, last by: ${s.last_error}` : "") + ".");
  fill($("flow"),
    stage("Sources", connectors.sources.map(c => outside(c, `${c.kind} topic ${c.location}, ${words(c.state)}`))),
    way(short(records) + "/s", bytes(volume) + "/s"),
    stage(`Partitions (${partitions.length})`, partitions.map(p => inside(`${p.topic}-${p.partition}`, p.actor,
      short(rate(`f/${p.topic}/${p.partition}`, p.rows, seconds)) + "/s, " + (lagOf(p) === null ? "end unknown" : whole(lagOf(p)) + " behind")))),
    way(short(rate("rows", sum(shards, ([, x]) => x.rows), seconds)) + "/s", "rows or groups"),
    stage(`Shards (${shards.length})`, shards.map(([n, x]) => inside("shard " + n, x.actor, `${whole(x.keys)} keys`))),
    way(short(rate("checkpoints", sum(shards, ([, x]) => x.checkpoints), seconds)) + "/s", "checkpoints"),
    stage("Committer", [inside("offset committer", board.committer.actor, `${whole(board.committer.commits)} committed`)]),
    way(written.includes(null) || !written.length ? "" : short(written.reduce((a, b) => a + b)) + "/s", "rows written"),
    stage("Sink and store", [...connectors.sinks.map(c => outside(c, `${c.kind} ${c.location}, ${words(c.state)}`)),
      outside(connectors.store, `${connectors.store.kind}, ${words(connectors.store.state)}`)]));
}

function plots(more) {
  for (const sample of more) {
    const before = samples[samples.length - 1];
    if (before && sample.restarts > before.restarts) fell.push(sample.at);
    samples.push(sample);
  }
  samples = samples.slice(-600);
  fell = fell.slice(-50);
  const rates = samples.slice(1).map((s, i) => {
    const passed = (s.at - samples[i].at) / 1000;
    return [s.at, passed > 0 && s.records >= samples[i].records ? (s.records - samples[i].records) / passed : null];
  });
  say($("rate-now"), plot($("rate-plot"), "records a second", rates, fell, short));
  say($("lag-now"), plot($("lag-plot"), "records behind", samples.map(s => [s.at, s.lag]), fell, whole));
}

const euros = cents => (cents / 100).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
function demo(status) {
  if ($("demo").hidden) {
    $("demo").hidden = false;
    for (const [kind, name] of [["partition", "a partition actor"], ["aggregation", "an aggregation actor"], ["committer", "the committer"], ["supervisor", "the supervisor"]]) {
      const button = el("button", { type: "button", id: "kill-" + kind }, "Kill " + name);
      button.addEventListener("click", () => kill(kind));
      $("kills").append(button);
    }
  }
  say($("demo-note"), status.note);
  say($("demo-line"), status.line);
  const mark = (produced, counted) => produced === counted ? el("span", { class: "equal" }, "equal")
    : counted > produced ? el("span", { class: "over" }, "too many")
    : el("span", { class: "behind-text" }, whole(produced - counted) + " under way");
  table($("truth"), [["item"], ["orders produced", "n"], ["orders counted", "n"], [""], ["pieces counted", "n"], ["amount counted", "n"]],
    status.items.map(i => [i.item, whole(i.produced.orders), whole(i.counted.orders), mark(i.produced.orders, i.counted.orders),
      whole(i.counted.pieces), euros(i.counted.cents)]));
}
async function kill(kind) {
  try {
    const count = { partition: partitionCount, aggregation: shardCount }[kind] || 1;
    const answer = await fetch(`api/demo/kill/${kind}?number=${Math.floor(Math.random() * count)}`, { method: "POST" });
    say($("demo-line"), await answer.text());
  } catch (error) {
    say($("demo-line"), "that did not arrive: " + error);
  }
}

const ask = async path => (await fetch(path)).json();
async function pipeline() {
  const shown = await ask("api/pipeline");
  say($("sql"), shown.sql);
  say($("plan"), shown.plan);
  $("notices").hidden = shown.notices.length === 0;
  fill($("notices"), ...shown.notices.map(notice => el("li", {}, notice)));
}
let known = false;
async function poll() {
  try {
    const after = samples.length ? samples[samples.length - 1].at : 0;
    const [status, connectors, balance, more] = await Promise.all(["api/status", "api/connectors", "api/balance", "api/history?after=" + after].map(ask));
    if (!known) await pipeline();
    known = true;
    show(status, connectors, balance);
    plots(more);
  } catch (error) {
    last = null;
    known = false;
    $("health").className = "pill bad";
    say($("health"), "no answer");
    say($("meta"), "the process does not answer; what is below is the last that it said");
    console.error(error);
  }
  setTimeout(poll, 1000);
}
poll();
