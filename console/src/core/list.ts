// A list that is read part by part. Rows change in place; new ones wait behind "12 new · show". Nothing moves by itself.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { AGAIN, call, asRefusal } from "./api";
import type { Answer, Name, Refusal } from "./api";
import type { Params } from "./router";

export interface Part<T> {
  items: T[];
  next: string | null;
  searched_to?: string | null;
}

export interface List<T> {
  rows: T[];
  id: (row: T) => Id;
  refusal: Refusal | null;
  isLoading: boolean;
  /** What is shown is of other parameters; the new is being loaded. */
  isOld: boolean;
  /** There is more behind what was loaded. */
  hasMore: boolean;
  /** The search ran out of time here: "searched back to 03:00 · go on". */
  searchedTo: string | null;
  /** Load the next part; where the search ran out of time only if the reader asks for it. */
  more: (asked?: unknown) => void;
  /** Load the first part again: all that waited comes in. */
  refresh: () => void;
  /** Rows that came since, and wait to be shown; there may be more. */
  fresh: number;
  /** Change rows in place; those that are not there are counted as new if `isNew` says so. */
  patch: (rows: readonly T[], isNew?: (row: T) => boolean) => void;
}

export type Id = string | number;
export const MOST_FRESH = 1000; // rows that are counted; beyond that "1,000+ new"

/** The next part behind those that are there. A row that has moved between two requests is not shown twice. */
export function joined<T>(before: readonly T[], items: readonly T[], id: (row: T) => Id): T[] {
  const known = new Set(before.map(id));
  return [...before, ...items.filter((row) => !known.has(id(row)))];
}

/** The same rows in the same order, changed. Rows that did not change stay the same objects. */
export function patched<T>(rows: T[], changed: ReadonlyMap<Id, T>, id: (row: T) => Id): T[] {
  if (!rows.some((row) => changed.has(id(row)))) return rows;
  return rows.map((row) => {
    const now = changed.get(id(row));
    return now ? { ...row, ...now } : row;
  });
}

/** The rows that are new: unknown, not yet counted, and wanted. */
export function cameTo<T>(fresh: ReadonlySet<Id>, rows: readonly T[], changed: readonly T[], id: (row: T) => Id, isNew: (row: T) => boolean): ReadonlySet<Id> {
  const known = new Set(rows.map(id));
  const came = changed.filter((row) => !known.has(id(row)) && !fresh.has(id(row)) && isNew(row));
  if (!came.length || fresh.size >= MOST_FRESH) return fresh;
  return new Set([...fresh, ...came.map(id)].slice(0, MOST_FRESH));
}

interface Held<T> {
  key: string | null;
  rows: T[];
  next: string | null;
  searchedTo: string | null;
  refusal: Refusal | null;
  isLoading: boolean;
}

type Row<N extends Name> = Answer<N> extends Part<infer T> ? T : never;

/** What an operation lists, by what tells its rows apart. */
export function useList<N extends Name & `GET ${string}`>(name: N, params: Params, id: (row: Row<N>) => Id): List<Row<N>> {
  type T = Row<N>;
  const key = JSON.stringify([name, params]);
  const load = (cursor: string | null, signal: AbortSignal) => call(name, { limit: 100, ...params, cursor }, undefined, { signal }) as Promise<Part<T>>;
  const nothing: Held<T> = { key: null, rows: [], next: null, searchedTo: null, refusal: null, isLoading: true };
  const [held, setHeld] = useState<Held<T>>(nothing);
  const [fresh, setFresh] = useState<ReadonlySet<Id>>(new Set());
  const latest = useRef({ load, id, held });
  latest.current = { load, id, held };
  const running = useRef<AbortController | null>(null);
  const heard = useRef(new Map<Id, T>()); // while a part is being loaded: it may have been read before

  const read = useCallback(
    async (cursor: string | null) => {
      running.current?.abort();
      const controller = (running.current = new AbortController());
      heard.current.clear();
      setHeld((old) => ({ ...old, isLoading: true }));
      try {
        const part = await latest.current.load(cursor, controller.signal);
        if (controller.signal.aborted) return;
        if (cursor === null) setFresh(new Set());
        setHeld((old) => {
          const rows = patched(joined(cursor === null ? [] : old.rows, part.items, latest.current.id), heard.current, latest.current.id);
          return { key, rows, next: part.next, searchedTo: part.searched_to ?? null, refusal: null, isLoading: false };
        });
      } catch (error) {
        if (controller.signal.aborted) return;
        const refusal = asRefusal(error);
        setHeld((old) => ({ ...(old.key === key ? old : nothing), key, refusal, isLoading: false }));
        if (refusal.isPassing) setTimeout(() => !controller.signal.aborted && void read(cursor), AGAIN);
      }
    },
    [key],
  );

  useEffect(() => {
    setFresh(new Set());
    void read(null);
    return () => running.current?.abort();
  }, [read]);

  const more = useCallback(
    (asked?: unknown) => {
      const { held } = latest.current;
      if (held.key === key && held.next && !held.isLoading && !held.refusal && (asked || !held.searchedTo)) void read(held.next);
    },
    [read],
  );

  const patch = useCallback((changed: readonly T[], isNew?: (row: T) => boolean) => {
    const by = new Map(changed.map((row) => [latest.current.id(row), row]));
    if (latest.current.held.isLoading) for (const [one, row] of by) heard.current.set(one, row);
    setHeld((old) => {
      const rows = patched(old.rows, by, latest.current.id);
      return rows === old.rows ? old : { ...old, rows };
    });
    if (isNew) setFresh((old) => cameTo(old, latest.current.held.rows, changed, latest.current.id, isNew));
  }, []);

  const isOld = held.key !== key;
  return {
    rows: held.rows,
    id,
    refusal: isOld ? null : held.refusal,
    isLoading: held.isLoading || isOld,
    isOld,
    hasMore: held.next !== null,
    searchedTo: held.searchedTo,
    more,
    refresh: () => void read(null),
    fresh: fresh.size,
    patch,
  };
}
