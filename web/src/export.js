// Save a picture as an SVG file of its own.

import { h } from "./dom.js";

/** Offer the pictures, side by side, as one file. Their colours and fonts are attributes, so nothing else is needed. */
export function downloadSvg(pictures, name) {
  const boxes = pictures.map((picture) => picture.box);
  const width = boxes.reduce((sum, box) => sum + box.width, 0);
  const height = Math.max(...boxes.map((box) => box.height));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of [["viewBox", `0 0 ${width} ${height}`], ["width", width], ["height", height]]) svg.setAttribute(key, value);
  let left = 0;
  pictures.forEach((picture, place) => {
    const copy = picture.svg.cloneNode(true);
    for (const [key, value] of [["x", left], ["width", boxes[place].width], ["height", boxes[place].height]]) copy.setAttribute(key, value);
    left += boxes[place].width;
    svg.append(copy);
  });
  const text = new XMLSerializer().serializeToString(svg);
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const link = h("a", { href: address, download: `${name}.svg` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
