// The filter bar: words with completion, applied as one types; what cannot be read is said below.

import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../core/api";
import { FILTER_WORDS, lastWord, quoted } from "../core/filter";
import { TASK_STATES } from "../core/states";
import { Icon } from "./icons";

const AFTER = 250; // ms without a key before the filter is applied
const MOST = 10; // names that are offered
const NAMED = { job: "GET /jobs", schedule: "GET /schedules" } as const;

interface Props {
  text: string;
  faults: string[];
  set: (text: string) => void;
  /** Called for Enter, with what was typed. */
  entered?: (text: string) => void;
}

export function FilterBar({ text, faults, set, entered }: Props) {
  const [typed, setTyped] = useState(text);
  const [offers, setOffers] = useState<string[]>([]);
  const [chosen, setChosen] = useState(-1);
  const timer = useRef(0);
  const asked = useRef(0);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (document.activeElement !== input.current) setTyped(text);
  }, [text]);
  useEffect(() => () => clearTimeout(timer.current), []);

  const offer = async (value: string) => {
    const number = (asked.current += 1);
    const found = await complete(value);
    if (number !== asked.current) return; // something else was typed meanwhile
    setOffers(found);
    setChosen(-1);
  };
  const close = () => {
    asked.current += 1;
    setOffers([]);
  };
  const apply = (value: string) => {
    clearTimeout(timer.current);
    set(value.trim());
  };
  const change = (value: string) => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => set(value.trim()), AFTER);
    void offer(value);
  };
  const take = (word: string | undefined) => {
    if (!word) return;
    const value = lastWord(typed)[0] + word + (/[:>.<]$/.test(word) ? "" : " ");
    change(value);
    input.current?.focus();
  };
  const press = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step && offers.length) {
      event.preventDefault();
      setChosen((chosen + step + offers.length + (chosen < 0 && step < 0 ? 1 : 0)) % offers.length);
    } else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0) {
      event.preventDefault();
      take(offers[chosen]);
    } else if (event.key === "Escape") {
      if (offers.length) close();
      else input.current?.blur();
      event.stopPropagation();
    }
  };
  const isOpen = offers.length > 0;
  return (
    <form
      class="filter-bar"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        close();
        apply(typed);
        entered?.(typed.trim());
        input.current?.blur(); // j and k move through what was found
      }}
    >
      <Icon name="search" />
      <input
        ref={input}
        data-filter
        type="text"
        role="combobox"
        aria-label="Filter tasks"
        aria-expanded={isOpen}
        aria-controls="filter-offers"
        aria-autocomplete="list"
        aria-activedescendant={chosen >= 0 ? `filter-offer-${chosen}` : undefined}
        aria-describedby={faults.length ? "filter-faults" : undefined}
        placeholder="state:failed job:report late>1s args.shop=7"
        spellcheck={false}
        autoComplete="off"
        autoCapitalize="off"
        enterKeyHint="search"
        value={typed}
        onInput={(event) => change(event.currentTarget.value)}
        onFocus={() => void offer(typed)}
        onBlur={close}
        onKeyDown={press}
      />
      {typed && (
        <button type="button" class="icon-button clear" aria-label="Clear the filter" onClick={() => (setTyped(""), apply(""), input.current?.focus())}>
          <Icon name="close" />
        </button>
      )}
      <ul id="filter-offers" class="offers" role="listbox" aria-label="Completions" hidden={!isOpen}>
        {offers.map((word, place) => (
          <li key={word} id={`filter-offer-${place}`} role="option" aria-selected={place === chosen} onMouseDown={(event) => (event.preventDefault(), take(word))}>
            {word}
          </li>
        ))}
      </ul>
      {faults.length > 0 && (
        <p id="filter-faults" class="fault" role="status">
          {faults.join("; ")}
        </p>
      )}
    </form>
  );
}

/** Words that could stand for the last one. */
async function complete(text: string): Promise<string[]> {
  const [, last] = lastWord(text);
  const [, name = "", value] = /^(\w+):(.*)$/s.exec(last) ?? [];
  if (value === undefined) return FILTER_WORDS.filter((word) => word.startsWith(last) && word !== last);
  const before = value.slice(0, value.lastIndexOf(",") + 1).replaceAll('"', "");
  const begun = value.slice(before.length).replaceAll('"', "");
  const all = (names: string[]) => names.filter((one) => one !== begun).map((one) => quoted(`${name}:${before}${one}`));
  if (name === "state") return all(Object.keys(TASK_STATES).filter((state) => state.startsWith(begun)));
  if (name === "priority") return all(["low", "normal", "high", "critical"].filter((level) => level.startsWith(begun)));
  try {
    if (name in NAMED) return all((await call(NAMED[name as keyof typeof NAMED], { name: `*${begun}*`, limit: MOST })).items.map((one) => one.name));
    if (name === "agent") return all((await call("GET /agents")).items.map((one) => one.name).filter((one) => one.includes(begun)).slice(0, MOST));
  } catch {
    // the list itself tells what is wrong
  }
  return [];
}
