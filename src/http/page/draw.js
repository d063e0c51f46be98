"use strict";
// What draws. Everything that is shown is set as text: topic names, errors and reasons come from elsewhere.
const $ = id => document.getElementById(id);
const SVG = ["svg", "path"];
function el(tag, attributes, ...children) {
  const node = SVG.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}
// Puts children in a node, unless they are those that it has: so what is selected stays so while nothing changes.
function fill(node, ...children) {
  const all = el("div", {}, ...children), same = node.childNodes.length === all.childNodes.length &&
    [...all.childNodes].every((child, i) => child.isEqualNode(node.childNodes[i]));
  if (!same) node.replaceChildren(...all.childNodes);
}
function say(node, text) { if (node.textContent !== text) node.textContent = text; }

const whole = n => Math.round(n).toLocaleString("en");
function short(n) {
  if (n > 0 && n < 10) return n.toFixed(1);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    const scale = unit === "k" ? 1e3 : limit;
    if (n >= limit) return (n / scale).toFixed(n / scale >= 100 ? 0 : 1) + unit;
  }
  return whole(n);
}
function bytes(n) {
  for (const [limit, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (n >= limit) return (n / limit).toFixed(n / limit >= 100 ? 0 : 1) + " " + unit;
  return Math.round(n) + " B";
}
function time(seconds) {
  if (seconds < 60) return Math.floor(seconds) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.floor(seconds % 60) + " s";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.floor(seconds % 3600 / 60) + " min";
  return Math.floor(seconds / 86400) + " d " + Math.floor(seconds % 86400 / 3600) + " h";
}
const millis = micros => micros < 1000 ? micros + " µs" : (micros / 1000).toFixed(micros < 10000 ? 1 : 0) + " ms";
const ago = seconds => seconds === null ? "none yet" : seconds.toFixed(1) + " s ago";
const words = text => text.replaceAll("_", " ");
const clock = at => new Date(at).toLocaleTimeString();
// A watermark is in nanoseconds; whoever reads it asks how far it is behind.
function watermark(nanos) {
  if (nanos === null) return "none";
  const at = nanos / 1e6, behind = (Date.now() - at) / 1000;
  const shown = new Date(at);
  if (isNaN(shown)) return "out of range";
  return shown.toISOString().slice(0, 19).replace("T", " ") + (behind > 0 ? ", " + time(behind) + " behind" : "");
}

const dot = life => el("i", { class: "dot " + life, "aria-hidden": "true" });
const state = life => el("span", {}, dot(life), words(life));

// `head`: for each column its name and its class.
function table(node, head, rows, nothing) {
  const line = el("tr");
  for (const [name, kind] of head) line.append(el("th", kind ? { class: kind, scope: "col" } : { scope: "col" }, name));
  const body = el("tbody");
  for (const row of rows) {
    const tr = el("tr");
    row.forEach((cell, i) => tr.append(el("td", head[i][1] ? { class: head[i][1] } : {}, cell)));
    body.append(tr);
  }
  if (!rows.length) body.append(el("tr", {}, el("td", { class: "soft", colspan: head.length }, nothing || "nothing yet")));
  fill(node, el("thead", {}, line), body);
}
function list(section, items) {
  section.hidden = items.length === 0;
  fill(section.querySelector("ul"), ...items.map(item => el("li", {}, item)));
}

// A line over the last minutes. `points`: [milliseconds, value or null]; `fell`: times of restarts.
function plot(node, name, points, fell, show) {
  const until = points.length ? points[points.length - 1][0] : 0, from = until - 600000;
  const values = points.map(p => p[1]).filter(v => v !== null), top = Math.max(1, ...values);
  const x = at => ((at - from) / 6000).toFixed(2), y = value => (100 - value / top * 98).toFixed(2);
  let line = "", area = "", open = null, before = null;
  for (const [at, value] of points) {
    if (value === null) {
      if (open !== null) area += `L${before},100L${open},100Z`;
      open = null;
    } else {
      line += (open === null ? "M" : "L") + x(at) + "," + y(value);
      area += (open === null ? "M" + x(at) + ",100L" : "L") + x(at) + "," + y(value);
      if (open === null) open = x(at);
      before = x(at);
    }
  }
  if (open !== null) area += `L${before},100L${open},100Z`;
  const now = values.length ? show(values[values.length - 1]) : "unknown", most = values.length ? show(Math.max(...values)) : "";
  const svg = el("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": `${name}: now ${now}, at most ${most}` },
    el("path", { class: "ground", d: "M0,100L100,100M0,2L100,2" }), el("path", { class: "area", d: area }), el("path", { class: "line", d: line }),
    ...fell.filter(at => at > from).map(at => el("path", { class: "fell", d: `M${x(at)},0L${x(at)},100` })));
  fill(node, svg, el("span", { class: "top" }, most), el("span", { class: "from" }, "10 min ago"), el("span", { class: "until" }, "now"));
  return now;
}

// What happens in one place of the flow: at most so many are shown, those that do not work first.
const SHOWN = 12;
function stage(name, nodes) {
  const well = n => n.life === "running", sorted = [...nodes.filter(n => !well(n)), ...nodes.filter(well)];
  const shown = sorted.slice(0, SHOWN).map(n => el("li", { class: "node" + (well(n) ? "" : ["halted", "stopped", "refused"].includes(n.life) ? " bad" : " warn"), "data-life": n.life },
    dot(n.life), n.name, el("div", { class: "what" }, n.what || words(n.life),
      n.restarts ? el("span", { class: "restarts" }, n.restarts === 1 ? ", 1 restart" : `, ${n.restarts} restarts`) : null),
    n.error && !well(n) ? el("div", { class: "cause" }, n.error) : null));
  const rest = sorted.slice(SHOWN), ill = rest.filter(n => !well(n)).length;
  if (rest.length) shown.push(el("li", { class: "node" }, `and ${rest.length} more, ` + (ill ? `${ill} of them not running` : "all running")));
  return el("li", { class: "stage" }, el("h3", {}, name), el("ul", {}, ...shown));
}
const way = (value, unit) => el("li", { class: "way" }, el("b", {}, value), el("span", {}, unit), el("i", { "aria-hidden": "true" }, "→"));
