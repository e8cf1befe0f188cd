// What a reader takes along: the picture as SVG or PNG, the edges as CSV, the graph as GraphML, a link to what is seen.

import { h, s } from "./dom.js";
import { groupColor } from "./palette.js";

const SVG = "http://www.w3.org/2000/svg";
const SHARPNESS = 2;

/** Offer a file. */
function download(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** The pictures, side by side, as one SVG element with the legend of colours below. Colours and fonts are attributes. */
function composed(pictures, content, colors) {
  const boxes = pictures.map((picture) => picture.box);
  const width = boxes.reduce((sum, box) => sum + box.width, 0);
  const names = content.groups && pictures.some((picture) => picture.groups.size > 0)
    ? content.groups.names.map((name, group) => [name, group]).filter(([, group]) => pictures.some((picture) => picture.groups.has(group))) : [];
  const top = Math.max(...boxes.map((box) => box.height));
  const height = top + (names.length > 0 ? 26 : 0);
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of [["viewBox", `0 0 ${width} ${height}`], ["width", width], ["height", height]]) svg.setAttribute(key, value);
  svg.append(s("rect", { width, height, fill: colors.paper }));
  let left = 0;
  pictures.forEach((picture, place) => {
    const copy = picture.svg.cloneNode(true);
    for (const [key, value] of [["x", left], ["width", boxes[place].width], ["height", boxes[place].height]]) copy.setAttribute(key, value);
    left += boxes[place].width;
    svg.append(copy);
  });
  let x = 14;
  for (const [name, group] of names) {
    svg.append(s("circle", { cx: x + 5, cy: top + 12, r: 5, fill: groupColor(colors, content.groupRank(group)), stroke: colors.rim }),
      s("text", { x: x + 14, y: top + 16, "font-size": 11, "font-family": "system-ui, sans-serif", fill: colors.ink }, name));
    x += 26 + 6.4 * name.length;
  }
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

/** Save the pictures as one SVG file. */
export function saveSvg(pictures, content, colors, name) {
  download(new Blob([composed(pictures, content, colors).text], { type: "image/svg+xml" }), `${name}.svg`);
}

/** Save the pictures as one PNG file, twice as fine as the screen. */
export async function savePng(pictures, content, colors, name) {
  const { text, width, height } = composed(pictures, content, colors);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = h("canvas", { width: width * SHARPNESS, height: height * SHARPNESS });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(blob, `${name}.png`), "image/png");
}

/** Columns of numbers that every edge has: [name, value of an edge]. */
function columns(content, target) {
  const list = [];
  if (target.truth) list.push(["true", (edge) => target.truth[edge]]);
  for (const { name } of content.methods) list.push([name, (edge) => target.scores[name][edge]]);
  for (const { name } of content.protocols) {
    const effect = target.effects[name];
    list.push([`dpc_${name}`, (edge) => effect.pc[edge]], [`dne_${name}`, (edge) => effect.ne[edge]],
      [`changed_${name}`, (edge) => effect.changed[edge]]);
  }
  return list;
}

/** Save all edges of a target as a table, a column each method and each effect, under the names of `attree explain`. */
export function saveCsv(content, target, name) {
  const list = columns(content, target);
  const relations = content.relations ? ["relation"] : [];
  const rows = [["target", "source", "destination", "source_name", "destination_name", ...relations, ...list.map(([title]) => title)]];
  for (let edge = 0; edge < target.size; edge++) {
    const [from, to] = [target.source[edge], target.destination[edge]];
    rows.push([content.targetId(target), target.nodes[from], target.nodes[to], target.names[from], target.names[to],
      ...relations.map(() => target.relationName(edge)), ...list.map(([, value]) => value(edge))]);
  }
  download(new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n"), "\r\n"], { type: "text/csv" }), `${name}.csv`);
}

/** A cell of a CSV table. A name that a spreadsheet would take for a formula gets an apostrophe in front. */
function cell(value) {
  if (typeof value === "number") return Number.isNaN(value) ? "" : String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Save a target's neighbourhood as GraphML, which NetworkX, Gephi and yEd read. */
export function saveGraphml(content, target, name) {
  const space = "http://graphml.graphdrawing.org/xmlns";
  const file = document.implementation.createDocument(space, "graphml");
  const make = (tag, attributes, ...children) => {
    const element = file.createElementNS(space, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, clean(value));
    element.append(...children);
    return element;
  };
  const data = (key, value) => {
    const element = make("data", { key });
    element.textContent = clean(value);
    return element;
  };
  const list = columns(content, target);
  const graph = make("graph", { id: `${content.kind}_${content.targetId(target)}`, edgedefault: "directed" });
  const keys = [["name", "node", "string"], ["target", "node", "boolean"], ...(target.group ? [["group", "node", "string"]] : []),
    ...(content.relations ? [["relation", "edge", "string"]] : []), ...list.map(([title]) => [title, "edge", "double"])];
  const id = (title, where) => `${where}_${title}`;
  for (const [title, where, type] of keys) {
    file.documentElement.append(make("key", { id: id(title, where), for: where, "attr.name": title, "attr.type": type }));
  }
  target.names.forEach((title, node) => {
    const element = make("node", { id: `n${node}` }, data(id("name", "node"), title), data(id("target", "node"), target.roots.includes(node)));
    if (target.group) element.append(data(id("group", "node"), content.groups.names[target.group[node]] ?? ""));
    graph.append(element);
  });
  for (let edge = 0; edge < target.size; edge++) {
    const element = make("edge", { id: `e${edge}`, source: `n${target.source[edge]}`, target: `n${target.destination[edge]}` });
    if (content.relations) element.append(data(id("relation", "edge"), target.relationName(edge)));
    for (const [title, value] of list) element.append(data(id(title, "edge"), value(edge)));
    graph.append(element);
  }
  file.documentElement.append(graph);
  const text = `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(file)}`;
  download(new Blob([text], { type: "application/xml" }), `${name}.graphml`);
}

/** Text without the control characters that XML does not allow. */
const clean = (value) => String(value).replaceAll(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "");

/** Put a text on the clipboard; whether that was allowed. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { readonly: true, "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
