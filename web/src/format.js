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

/** A number with its sign: changes are read by it. */
export function signed(value) {
  return value > 0 ? `+${number(value, 3)}` : number(value, 3);
}

/** A whole number with separators. */
export function whole(value) {
  return Math.round(value).toLocaleString("en");
}

/** A number with its noun. */
export function count(value, noun) {
  return `${whole(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** At most `most` characters. */
export function short(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}
