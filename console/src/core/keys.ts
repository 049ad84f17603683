// The keyboard: single letters outside of text fields, and sequences such as "g t".

import { useEffect, useRef } from "preact/hooks";
import { letters } from "./prefs";

export interface Binding {
  keys: string; // "j", "g t", "mod+k", "Escape"
  does: string; // for the list behind "?"
  everywhere?: boolean; // not of this page alone
  run: (event: KeyboardEvent) => void;
}

const bound = new Set<{ current: Binding[] }>();
const WITHIN = 1000; // ms between the letters of a sequence
let begun = { key: "", at: 0 };

/** All that can be typed now, for the list behind "?". */
export const bindings = (): Binding[] => [...bound].flatMap((one) => one.current);

export function useKeys(given: Binding[]): void {
  const latest = useRef(given);
  latest.current = given;
  useEffect(() => {
    bound.add(latest);
    return () => void bound.delete(latest);
  }, []);
}

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && !/^(checkbox|radio|button)$/.test((target as HTMLInputElement).type)));

export function startKeys(): void {
  document.addEventListener("keydown", (event) => {
    const isMod = event.ctrlKey || event.metaKey;
    const name = isMod ? `mod+${event.key.toLowerCase()}` : event.key;
    const isLetter = !isMod && event.key.length === 1;
    if (event.altKey || (!isMod && isTyping(event.target) && event.key !== "Escape")) return;
    if (isLetter && letters.value === "off") return;
    if (document.querySelector("dialog[open]") && event.key !== "Escape" && !isMod) return;
    const sequence = event.timeStamp - begun.at < WITHIN ? `${begun.key} ${name}` : "";
    begun = { key: isLetter ? name : "", at: event.timeStamp };
    // the newest first: what is on screen comes before what is always there
    const all = bindings().reverse();
    const found = (sequence && all.find((one) => one.keys === sequence)) || all.find((one) => one.keys === name);
    if (!found) return;
    event.preventDefault();
    begun = { key: "", at: 0 };
    found.run(event);
  });
}
