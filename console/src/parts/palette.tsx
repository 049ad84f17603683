// The palette: what was looked at last, pages, jobs, schedules, agents, batches, task numbers and actions by a few letters.

import { useEffect, useRef, useState } from "preact/hooks";
import { refuse } from "../core/actions";
import { call, whyNot } from "../core/api";
import type { Rank } from "../core/api";
import { recent } from "../core/recent";
import { go, link } from "../core/router";
import { Dialog } from "./controls";

export interface Command {
  word: string;
  needs?: Rank;
  run: () => unknown;
}
interface Found {
  word: string;
  kind: string;
  to?: string;
  refused?: string | null;
  run?: () => unknown;
}

const MOST = 6; // of each kind
const AFTER = 120; // ms without a key before the server is asked
const LABEL = "Page, job, schedule, agent, batch, task number or action";

export function Palette({ places, commands, close }: { places: readonly (readonly [string, string, ...unknown[]])[]; commands: readonly Command[]; close: () => void }) {
  const [text, setText] = useState("");
  const [named, setNamed] = useState<Found[]>([]);
  const [place, setPlace] = useState(0);
  const list = useRef<HTMLUListElement>(null);

  useEffect(() => {
    const given = text.trim();
    if (!given) return setNamed([]);
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      const found = await search(given, controller.signal);
      if (!controller.signal.aborted) setNamed(found);
    }, AFTER);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [text]);

  const low = text.trim().toLowerCase();
  const fits = ({ word }: Found) => low.split(/\s+/).every((part) => word.toLowerCase().includes(part));
  const number = /^#?(\d{1,18})$/.exec(low)?.[1];
  const pages = places.map(([to, word]) => ({ word, kind: "page", to: to || "." }));
  const actions = commands.map(({ word, needs, run }) => ({ word, kind: "action", run, refused: needs ? whyNot(needs) : null }));
  const all: Found[] = [
    ...(number ? [{ word: `Task ${number}`, kind: "task", to: link`tasks/${number}` }, { word: `Batch ${number}`, kind: "batch", to: link`batches/${number}` }] : []),
    ...[...recent.value.map((one) => ({ ...one, kind: `${one.kind}, recent` })), ...(low ? [] : pages), ...actions].filter(fits),
    ...(low ? [...pages.filter(fits), ...named] : []),
  ];
  const found = all.filter((one, at) => !one.to || all.findIndex(({ to }) => to === one.to) === at);
  const at = Math.min(place, found.length - 1);

  const open = (one: Found | undefined) => {
    if (!one) return;
    close();
    if (one.refused) refuse(one.refused);
    else if (one.to !== undefined) go(one.to);
    else one.run?.();
  };
  const press = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step) {
      event.preventDefault();
      const next = (at + step + found.length) % Math.max(1, found.length);
      setPlace(next);
      list.current?.children[next]?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") {
      event.preventDefault();
      open(found[at]);
    }
  };
  return (
    <Dialog title="Find anything" close={close}>
      <input
        class="palette-input"
        type="text"
        aria-label={LABEL}
        placeholder={LABEL}
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={found.length ? `palette-${at}` : undefined}
        autoFocus
        autoComplete="off"
        spellcheck={false}
        value={text}
        onInput={(event) => (setText(event.currentTarget.value), setPlace(0))}
        onKeyDown={press}
      />
      <ul id="palette-list" class="palette" role="listbox" aria-label="Found" ref={list}>
        {found.map((one, number) => (
          <li key={`${one.kind} ${one.word}`} id={`palette-${number}`} role="option" aria-selected={number === at} aria-disabled={Boolean(one.refused)} onClick={() => open(one)}>
            <span>{one.word}</span> <span class="quiet">{one.refused ?? one.kind}</span>
          </li>
        ))}
      </ul>
      {!found.length && <p class="quiet">Nothing has “{text}” in its name.</p>}
    </Dialog>
  );
}

/** Names that have these letters; of what the role may not read there is nothing. */
async function search(given: string, signal: AbortSignal): Promise<Found[]> {
  const pattern = { name: `*${given}*`, limit: MOST };
  const how = { signal };
  const [schedules, jobs, agents, batches] = await Promise.allSettled([
    call("GET /schedules", pattern, undefined, how),
    call("GET /jobs", pattern, undefined, how),
    call("GET /agents", {}, undefined, how),
    call("GET /batches", pattern, undefined, how),
  ]);
  const items = <T,>(part: PromiseSettledResult<{ items: T[] }>): T[] => (part.status === "fulfilled" ? part.value.items : []);
  const fit = items(agents).filter(({ name }) => name.toLowerCase().includes(given.toLowerCase()));
  return [
    ...items(schedules).map(({ name }) => ({ word: name, kind: "schedule", to: link`schedules/${name}` })),
    ...items(jobs).map(({ name }) => ({ word: name, kind: "job", to: link`jobs/${name}` })),
    ...fit.slice(0, MOST).map(({ name }) => ({ word: name, kind: "agent", to: link`agents/${name}` })),
    ...items(batches).map(({ id, name }) => ({ word: `${name} (${id})`, kind: "batch", to: link`batches/${id}` })),
  ];
}
