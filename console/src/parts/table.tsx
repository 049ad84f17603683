// Tables: aligned, with headers, by keyboard. Long ones draw what is on screen only and load the next part when it comes near.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useKeys } from "../core/keys";
import type { List } from "../core/list";
import { go } from "../core/router";
import { Loading, Problem } from "./page";
import { many } from "./show";

export interface Column<T> {
  name: string;
  /** For those who do not see the layout; where the header is empty. */
  label?: string;
  cell: (row: T) => ComponentChildren;
  align?: "right";
  /** Left out first when there is little room: 1 below 1100 px, 2 below 800 px, 3 below 560 px. */
  drop?: 1 | 2 | 3;
  width?: string;
  sort?: { is: "up" | "down" | null; by: () => void };
}

interface TableProps<T> {
  label: string;
  columns: Column<T>[];
  rows: readonly T[];
  id: (row: T) => string | number;
  /** Where Enter on a row goes. */
  to?: (row: T) => string;
  select?: Selection;
  /** Called when the last rows come into sight. */
  more?: (() => void) | undefined;
  /** Told which rows are on screen, whenever that changes. */
  seen?: (rows: readonly T[]) => void;
  /** Letters for the row that has the focus: { r: retry }. */
  keys?: { keys: string; does: string; run: (row: T) => void }[];
  empty?: ComponentChildren;
}

export interface Selection {
  has: (id: string | number) => boolean;
  toggle: (ids: (string | number)[], on: boolean) => void;
}

const ROW = 37; // px, until one is drawn; a phone has taller ones
const MARGIN = 12; // rows drawn above and below what is seen
const ALL = 120; // rows up to which all are drawn

export function Table<T>({ label, columns, rows, id, to, select, more, seen: tell, keys = [], empty }: TableProps<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ first: 0, last: 60 });
  const [currentId, setCurrentId] = useState<string | number | null>(null);
  const [height, setHeight] = useState(ROW);
  const isWindowed = rows.length > ALL;
  // by id: a row keeps the focus wherever it stands after a load
  const current = currentId === null ? -1 : rows.findIndex((row) => id(row) === currentId);
  const setCurrent = (place: number) => setCurrentId(rows[place] ? id(rows[place]) : null);

  const look = () => {
    const body = box.current?.querySelector("tbody");
    const real = body?.querySelector("tr[data-id]")?.getBoundingClientRect().height || ROW;
    if (Math.abs(real - height) > 0.5) setHeight(real);
    const top = body?.getBoundingClientRect().top ?? 0;
    const first = Math.max(0, Math.floor(-top / real) - MARGIN);
    const last = first + Math.ceil(innerHeight / real) + 2 * MARGIN;
    setSeen((old) => (Math.abs(old.first - first) < MARGIN / 2 && old.last >= Math.min(rows.length, last - MARGIN / 2) ? old : { first, last }));
    if (more && last >= rows.length) more();
    tell?.(rows.slice(Math.max(0, Math.floor(-top / real)), Math.ceil((innerHeight - top) / real)));
  };
  useLayoutEffect(look, [rows]);
  useEffect(() => {
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  });

  const focus = (place: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, place));
    setCurrent(next);
    setSeen((old) => (next < old.first || next >= old.last ? { first: Math.max(0, next - 30), last: next + 30 } : old));
    const land = () => {
      const row = box.current?.querySelector<HTMLElement>(`tr[data-place="${next}"]`);
      row?.focus();
      row?.scrollIntoView({ block: "nearest" });
      return row;
    };
    if (!land()) requestAnimationFrame(land); // it has yet to be drawn
  };
  const chosen = rows[current];
  useKeys([
    { keys: "j", does: "next row", run: () => focus(current + 1) },
    { keys: "k", does: "previous row", run: () => focus(current - 1) },
    ...(select && chosen ? [{ keys: "x", does: "select the row", run: () => select.toggle([id(chosen)], !select.has(id(chosen))) }] : []),
    ...keys.map((one) => ({ keys: one.keys, does: one.does, run: () => chosen && one.run(chosen) })),
  ]);

  if (!rows.length && empty) return <>{empty}</>;
  const first = isWindowed ? Math.min(seen.first, rows.length) : 0;
  const last = isWindowed ? Math.min(seen.last, rows.length) : rows.length;
  const span = columns.length + (select ? 1 : 0);
  return (
    <div class="table-box" ref={box}>
      <table class={isWindowed ? "windowed" : ""} aria-label={label} aria-rowcount={rows.length}>
        <thead>
          <tr>
            {select && (
              <th class="choose">
                <input
                  type="checkbox"
                  aria-label="Select all rows that are shown"
                  checked={rows.length > 0 && rows.every((row) => select.has(id(row)))}
                  onChange={(event) => select.toggle(rows.map(id), event.currentTarget.checked)}
                />
              </th>
            )}
            {columns.map((column) => (
              <th key={column.name} scope="col" class={classOf(column)} aria-sort={sorted(column)} aria-label={column.name ? column.label : undefined}>
                {column.sort ? (
                  <button type="button" class="sort" onClick={column.sort.by}>
                    {column.name}
                    <span aria-hidden="true">{column.sort.is === "up" ? " ↑" : column.sort.is === "down" ? " ↓" : ""}</span>
                  </button>
                ) : (
                  column.name || <span class="hidden">{column.label}</span>
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {first > 0 && <Space height={first * height} span={span} />}
          {rows.slice(first, last).map((row, place) => (
            <tr
              key={id(row)}
              data-place={first + place}
              data-id={id(row)}
              tabIndex={first + place === Math.max(0, current) ? 0 : -1}
              aria-rowindex={first + place + 1}
              data-chosen={select ? select.has(id(row)) : undefined}
              onFocus={() => setCurrent(first + place)}
              onKeyDown={(event) => event.key === "Enter" && event.target === event.currentTarget && to && go(to(row))}
            >
              {select && (
                <td class="choose">
                  <input type="checkbox" aria-label={`Select ${id(row)}`} checked={select.has(id(row))} onChange={(event) => select.toggle([id(row)], event.currentTarget.checked)} />
                </td>
              )}
              {columns.map((column) => (
                <td key={column.name} class={classOf(column)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
          {last < rows.length && <Space height={(rows.length - last) * height} span={span} />}
        </tbody>
      </table>
    </div>
  );
}

/** The room of rows that are not drawn. */
function Space({ height, span }: { height: number; span: number }) {
  return (
    <tr class="space" aria-hidden="true">
      <td colSpan={span} style={{ height: `${height}px` }} />
    </tr>
  );
}

const classOf = <T,>({ align, drop }: Column<T>): string => [align, drop && `drop-${drop}`].filter(Boolean).join(" ");

function sorted<T>({ sort }: Column<T>): "ascending" | "descending" | "none" | undefined {
  return sort && (sort.is === "up" ? "ascending" : sort.is === "down" ? "descending" : "none");
}

/** The rows of a list; above them what was refused, and in their place that they are being loaded. */
export function ListTable<T>({ list, empty, ...rest }: { list: List<T> } & Omit<TableProps<T>, "rows" | "id" | "more">) {
  return (
    <>
      {list.refusal && <Problem refusal={list.refusal} retry={list.refresh} />}
      <Table {...rest} rows={list.rows} id={list.id} more={list.more} empty={list.isLoading ? <Loading /> : !list.refusal && empty} />
    </>
  );
}

/** "12 new tasks · show". */
export function Fresh({ list, one, more }: { list: { fresh: number; refresh: () => void }; one: string; more?: string }) {
  return (
    list.fresh > 0 && (
      <button type="button" class="link" onClick={list.refresh}>
        {many(list.fresh, `new ${one}`, more && `new ${more}`)} · show
      </button>
    )
  );
}
