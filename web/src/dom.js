// Elements from plain calls. Text only ever becomes text nodes or attributes: nothing from data is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: attributes (functions become listeners) and children (strings become text). */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element, likewise. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** A labelled select; `groups` are options, or [heading, options]; an option is [value, text]. */
export function select(label, groups, value, change) {
  const option = ([key, text]) => h("option", { value: key, selected: key === value }, text);
  const entries = groups.map((group) =>
    Array.isArray(group[1]) ? h("optgroup", { label: group[0] }, group[1].map(option)) : option(group),
  );
  const control = h("select", { change: () => change(control.value) }, entries);
  return { element: h("label", { class: "field" }, h("span", {}, label), control), control };
}
