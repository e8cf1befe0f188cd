// Colours that colour-blind readers tell apart (Okabe and Ito), for light and dark.

const LIGHT = {
  name: "light",
  paper: "#ffffff",
  ink: "#222222",
  muted: "#5f6368",
  faint: "#d9d9d9",
  node: "#ffffff",
  rim: "#7a7f86",
  target: "#e69f00",
  onTarget: "#222222",
  truth: "#0072b2",
  chosen: "#111111",
  rising: ["#cfcfcf", "#f0a070", "#d55e00", "#5c1a00"],
  falling: ["#cfcfcf", "#7fc9b4", "#009e73", "#00402f"],
  groups: ["#9ed1f0", "#f7dc8c", "#b5e0b8", "#e9b8d6", "#c9bdf2", "#d9d2bd", "#a9dedb", "#c3ccd6"],
  other: "#eceef0",
};

const DARK = {
  name: "dark",
  paper: "#15181d",
  ink: "#e8eaed",
  muted: "#a2a9b3",
  faint: "#343a43",
  node: "#23282f",
  rim: "#8a929d",
  target: "#e69f00",
  onTarget: "#15181d",
  truth: "#56b4e9",
  chosen: "#ffffff",
  rising: ["#3a4048", "#8f4312", "#f0803c", "#ffe3c2"],
  falling: ["#3a4048", "#0b6e54", "#2fc79b", "#d3fff0"],
  groups: ["#1d5a80", "#6f5a12", "#2b5f38", "#7a3a63", "#52459b", "#5d5541", "#1b6460", "#4b5764"],
  other: "#2a3037",
};

export const palette = (theme) => (theme === "dark" ? DARK : LIGHT);

const channels = (color) => [1, 3, 5].map((start) => Number.parseInt(color.slice(start, start + 2), 16));

/** The colour of a strength between -1 and 1: further from the paper the stronger it is. */
export function colorOf(colors, strength) {
  const stops = strength < 0 ? colors.falling : colors.rising;
  const place = Math.min(1, Math.abs(strength)) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [from, to] = [channels(stops[low]), channels(stops[low + 1])];
  return `rgb(${from.map((value, channel) => Math.round(value + (place - low) * (to[channel] - value))).join(",")})`;
}

/** The fill of a node of a group, by the group's rank: the first few have colours of their own, all others share one. */
export const groupColor = (colors, rank) => colors.groups[rank] ?? colors.other;

/** A colour, moved towards the ink until it stands out from the paper as lines have to: 3 to 1. */
export function standingOut(colors, color) {
  const [paper, ink] = [channels(colors.paper), channels(colors.ink)];
  let own = channels(color);
  if (luminance(own) < 0.001 && contrast(own, paper) < 3) return `rgb(${ink.join(",")})`; // black on dark paper: white, so that greys differ
  for (let step = 0; step < 20 && contrast(own, paper) < 3; step += 1) {
    own = own.map((value, channel) => value + 0.1 * (ink[channel] - value));
  }
  return `rgb(${own.map(Math.round).join(",")})`;
}

/** How far two colours are apart in lightness, from 1 to 21, by WCAG 2. */
function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

function luminance(color) {
  const [red, green, blue] = color.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** The theme around the explorer: a notebook's own, or what the reader's system prefers. */
export function ambientTheme() {
  const notebook = document.body.dataset.jpThemeLight;
  if (notebook) return notebook === "true" ? "light" : "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
