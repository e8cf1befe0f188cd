// How numbers and things are written.

/** A few significant digits, without an exponent where one can do without. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "undefined";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(digits))) : value.toExponential(2);
  return text.replace("-", "−").replace("e−", "e-").replace("e+", "e");
}

/** A number with the same digits as all others of its column. */
export function fixed(value, digits = 4) {
  return typeof value === "number" && Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : number(value);
}

/** A change of a probability or an entropy smaller than this is rounding of the network's own arithmetic. */
const NOISE = 1e-7;

/** A change with its sign; one that is rounding is said to be none. */
export function signed(value) {
  if (value !== 0 && Math.abs(value) < NOISE) return "≈ 0";
  return value > 0 ? `+${number(value, 3)}` : number(value, 3);
}

/** A share in per cent, with enough digits near its ends to be told from 0 and 100. */
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "undefined";
  const value = share * 100;
  const [low, high] = [Math.min(value, 100 - value), Math.abs(value)];
  const digits = low >= 1 || value === 0 || value === 100 ? 0 : low >= 0.1 ? 1 : 2;
  if (high < 0.005) return share > 0 ? "<0.01\u00a0%" : "0\u00a0%";
  if (value > 99.995 && value < 100) return ">99.99\u00a0%";
  return `${value.toFixed(digits)}\u00a0%`;
}

/** A whole number with separators. */
export function whole(value) {
  return Math.round(value).toLocaleString("en");
}

/** A number with its noun. */
export function count(value, noun) {
  return `${whole(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** At most `most` characters, as readers count them: an emoji is one. Names that begin alike often differ at their ends, so the middle is left out. */
export function short(text, most) {
  const characters = Array.from(text);
  if (characters.length <= most) return text;
  const end = Math.floor((most - 1) / 3);
  return `${characters.slice(0, most - 1 - end).join("")}…${end > 0 ? characters.slice(-end).join("") : ""}`;
}

const TURNS = /[\u0590-\u08ff\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufefc]/;

/** A name within a sentence; one that runs from right to left turns itself alone, not the words around it. */
export function isolated(name) {
  return TURNS.test(name) ? `\u2068${name}\u2069` : name;
}
