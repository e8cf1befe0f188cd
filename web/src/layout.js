// Places nodes when only a part of a neighbourhood is drawn, so that this part fills the picture.

const SWEEPS = 80;
const PULL = 6;

/** Places of all nodes, as Python put them; `shown` says which are drawn. */
export function wholeLayout(target) {
  return { x: target.x, y: target.y, spacing: target.spacing, shown: new Uint8Array(target.nodes.length).fill(1) };
}

/**
 * Places of the nodes that visible edges touch, and of the targets: distances on screen follow distances in the part that
 * is drawn. Starts from Python's places and lowers the stress node by node, so the same part always looks the same.
 */
export function partLayout(target, visible) {
  const shown = new Uint8Array(target.nodes.length);
  for (const root of target.roots) shown[root] = 1;
  for (let edge = 0; edge < target.size; edge++) {
    if (visible[edge]) shown[target.source[edge]] = shown[target.destination[edge]] = 1;
  }
  const nodes = Array.from(shown.keys()).filter((node) => shown[node]);
  if (nodes.length === target.nodes.length || nodes.length > 700) return { ...wholeLayout(target), shown };
  const place = new Map(nodes.map((node, position) => [node, position]));
  const steps = distances(target, visible, nodes, place);
  const x = Float64Array.from(nodes, (node) => target.x[node]);
  const y = Float64Array.from(nodes, (node) => target.y[node]);
  relax(x, y, steps, new Set(target.roots.map((root) => place.get(root))));
  return { ...spreadOut(target, nodes, x, y), shown };
}

/** Steps between any two of the nodes; parts that do not hang together stand two steps beyond the longest way apart. */
function distances(target, visible, nodes, place) {
  const beside = nodes.map(() => []);
  for (let edge = 0; edge < target.size; edge++) {
    if (!visible[edge]) continue;
    const [from, to] = [place.get(target.source[edge]), place.get(target.destination[edge])];
    if (from !== to) beside[from].push(to), beside[to].push(from);
  }
  let longest = 1;
  const rows = nodes.map((_, start) => {
    const row = new Float64Array(nodes.length).fill(Infinity);
    row[start] = 0;
    const queue = [start];
    for (const node of queue) {
      for (const next of beside[node]) {
        if (row[next] !== Infinity) continue;
        row[next] = row[node] + 1;
        longest = Math.max(longest, row[next]);
        queue.push(next);
      }
    }
    return row;
  });
  for (const row of rows) row.forEach((steps, node) => { if (steps === Infinity) row[node] = longest + 2; });
  return rows;
}

/** Move each node to where the others want it, some times over. */
function relax(x, y, steps, roots) {
  const size = x.length;
  const unit = Math.max(...steps.map((row) => Math.max(...row))) || 1;
  for (let node = 0; node < size; node++) {
    x[node] = x[node] * unit + 1e-3 * Math.cos(node); // no two nodes on one spot
    y[node] = y[node] * unit + 1e-3 * Math.sin(node);
  }
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    for (let node = 0; node < size; node++) {
      let [sum, toX, toY] = [0, 0, 0];
      for (let other = 0; other < size; other++) {
        if (other === node) continue;
        const wanted = steps[node][other];
        const weight = (roots.has(node) || roots.has(other) ? PULL : 1) / (wanted * wanted);
        const [dx, dy] = [x[node] - x[other], y[node] - y[other]];
        const length = Math.hypot(dx, dy) || 1e-9;
        sum += weight;
        toX += weight * (x[other] + (wanted * dx) / length);
        toY += weight * (y[other] + (wanted * dy) / length);
      }
      if (sum > 0) [x[node], y[node]] = [toX / sum, toY / sum];
    }
  }
}

/** Between -1 and 1, at the places of the whole list of nodes, with how far apart close nodes stand. */
function spreadOut(target, nodes, x, y) {
  const middle = (values) => (Math.min(...values) + Math.max(...values)) / 2;
  const [cx, cy] = [middle(x), middle(y)];
  const reach = Math.max(1e-9, ...x.map((value) => Math.abs(value - cx)), ...y.map((value) => Math.abs(value - cy)));
  const [all, down] = [new Float64Array(target.nodes.length), new Float64Array(target.nodes.length)];
  nodes.forEach((node, position) => {
    all[node] = (x[position] - cx) / reach;
    down[node] = (y[position] - cy) / reach;
  });
  const nearest = nodes.map((node) => {
    let least = Infinity;
    for (const other of nodes) if (other !== node) least = Math.min(least, Math.hypot(all[node] - all[other], down[node] - down[other]));
    return least;
  }).sort((a, b) => a - b);
  const spacing = nodes.length > 1 ? nearest[Math.floor(nearest.length * 0.2)] : 1;
  return { x: all, y: down, spacing: Math.max(spacing, 0.02) };
}
