// All that a reader looks at, as text behind the # of an address, and back.

/** Parts of the state with a name in the address: [key, default, reader of text]. */
const PARTS = [
  ["method", null, String], ["beside", "nothing", String], ["protocol", null, String], ["view", "graph", String],
  ["strongest", 0, Number], ["edge", -1, Number], ["step", -1, Number], ["loops", true, flag], ["apart", false, flag], ["sized", false, flag], ["arcs", false, flag], ["columns", false, flag],
  ["scale", "own", String], ["sort", "telling", String], ["show", "all", String], ["find", "", String], ["theme", "", String],
];

function flag(text) {
  return text === "true";
}

/** The state as text; what is as at first is left out, but for what every reader wants to see. */
export function toText(content, state) {
  const asked = new URLSearchParams({ target: content.targetId(content.targets[state.target]) });
  for (const [key, first] of PARTS) {
    if (first === null || (state[key] !== undefined && state[key] !== first)) asked.set(key, state[key] === Infinity ? "all" : state[key]);
  }
  if (state.cut.length > 0) asked.set("cut", state.cut.join(","));
  return String(asked);
}

/** The state that a text stands for; what does not fit the content is left out. */
export function fromText(content, text) {
  const asked = new URLSearchParams(text);
  const state = {};
  const place = content.targets.findIndex((target) => String(content.targetId(target)) === asked.get("target"));
  if (place >= 0) state.target = place;
  for (const [key, , read] of PARTS) {
    if (asked.has(key)) state[key] = asked.get(key) === "all" && read === Number ? Infinity : read(asked.get(key));
  }
  const methods = content.methods.map(({ name }) => name);
  const protocols = content.protocols.map(({ name }) => name);
  const known = {
    method: methods, protocol: protocols, beside: ["nothing", ...methods, ...(protocols.length > 0 ? [""] : [])], view: ["graph", "tree"],
    scale: ["own", "shared"], theme: ["light", "dark"],
  };
  for (const [key, values] of Object.entries(known)) if (key in state && !values.includes(state[key])) delete state[key];
  const size = place >= 0 ? content.target(place).size : 0;
  const whole = (value, least, most) => Number.isInteger(value) && value >= least && value < most;
  for (const key of ["edge", "step"]) if (key in state && !whole(state[key], -1, key === "edge" ? size : 1e6)) delete state[key];
  if ("strongest" in state && !(state.strongest === Infinity || whole(state.strongest, 1, 1e6))) delete state.strongest;
  const cut = (asked.get("cut") ?? "").split(",").filter(Boolean).map(Number);
  state.cut = cut.every((edge) => whole(edge, 0, size)) ? [...new Set(cut)] : [];
  return state;
}
