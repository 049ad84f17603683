// A flow in layers: each task one layer below the lowest of those that it runs after, ordered so that few lines cross.

export interface Edge {
  parent: number;
  child: number;
}

export interface Layout {
  /** By layer, from the top. Below 0: a place where a line passes through, so that it does not run behind a task. */
  layers: number[][];
  /** Each line from its parent to its child, through the layers between. */
  lines: number[][];
}

/** A circle cannot be, and if it were its tasks stay in the layer that they have reached. */
export function layout(ids: readonly number[], edges: readonly Edge[]): Layout {
  const known = new Set(ids);
  const shown = edges.filter(({ parent, child }) => known.has(parent) && known.has(child));
  const depth = depths(ids, shown);
  const found: number[][] = [];
  for (const id of ids) (found[depth.get(id) ?? 0] ??= []).push(id);
  const children: Near = new Map();
  const parents: Near = new Map();
  let last = 0;
  const lines = shown.map(({ parent, child }) => {
    const line = [parent];
    for (let level = (depth.get(parent) ?? 0) + 1; level < (depth.get(child) ?? 0); level += 1) {
      line.push((last -= 1));
      found[level]?.push(last);
    }
    line.push(child);
    for (const [place, id] of line.entries()) {
      const next = line[place + 1];
      if (next === undefined) break;
      children.set(id, [...(children.get(id) ?? []), next]);
      parents.set(next, [...(parents.get(next) ?? []), id]);
    }
    return line;
  });
  return { layers: ordered(found, parents, children), lines };
}

type Near = Map<number, number[]>;

/** One more than the greatest of the parents'. */
function depths(ids: readonly number[], edges: readonly Edge[]): Map<number, number> {
  const waits = new Map<number, number>();
  for (const { child } of edges) waits.set(child, (waits.get(child) ?? 0) + 1);
  const depth = new Map<number, number>(ids.map((id) => [id, 0]));
  const ready = ids.filter((id) => !waits.get(id));
  for (let id = ready.shift(); id !== undefined; id = ready.shift())
    for (const { parent, child } of edges) {
      if (parent !== id) continue;
      depth.set(child, Math.max(depth.get(child) ?? 0, (depth.get(id) ?? 0) + 1));
      const left = (waits.get(child) ?? 0) - 1;
      waits.set(child, left);
      if (!left) ready.push(child);
    }
  return depth;
}

/** Each where the middle of its neighbours is: down by parents, up by children, twice. */
function ordered(given: number[][], parents: Near, children: Near): number[][] {
  let found = given;
  for (let round = 0; round < 4; round += 1) {
    const isDown = round % 2 === 0;
    const next = [...found];
    const places = isDown ? next.keys() : [...next.keys()].reverse();
    for (const level of places) {
      const beside = next[isDown ? level - 1 : level + 1];
      if (!beside) continue;
      const place = new Map(beside.map((id, at) => [id, (at + 0.5) / beside.length]));
      const near = isDown ? parents : children;
      const layer = next[level] ?? [];
      const wanted = new Map(
        layer.map((id, at) => {
          const places = (near.get(id) ?? []).map((one) => place.get(one)).filter((one) => one !== undefined);
          return [id, places.length ? places.reduce((sum, one) => sum + one, 0) / places.length : (at + 0.5) / layer.length];
        }),
      );
      next[level] = [...layer].sort((a, b) => (wanted.get(a) ?? 0) - (wanted.get(b) ?? 0));
    }
    found = next;
  }
  return found;
}
