// A search field whose text is in the address: applied as one types, never changed while one does.

import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons";

const AFTER = 250; // ms without a key before it is applied

export function Search({ label, placeholder, value, set }: { label: string; placeholder?: string; value: string; set: (value: string) => void }) {
  const [typed, setTyped] = useState(value);
  const timer = useRef(0);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (document.activeElement !== input.current) setTyped(value);
  }, [value]);
  return (
    <form class="filter-bar" role="search" onSubmit={(event) => (event.preventDefault(), clearTimeout(timer.current), set(typed.trim()), input.current?.blur())}>
      <Icon name="search" />
      <input
        ref={input}
        data-filter
        type="search"
        aria-label={label}
        placeholder={placeholder}
        spellcheck={false}
        autoComplete="off"
        value={typed}
        onInput={({ currentTarget: { value } }) => {
          setTyped(value);
          clearTimeout(timer.current);
          timer.current = window.setTimeout(() => set(value.trim()), AFTER);
        }}
      />
    </form>
  );
}
