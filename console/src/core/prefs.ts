// What one person prefers, kept in this browser only.

import { signal } from "./signals";
import type { Signal } from "./signals";

/** A choice that lasts. */
export function kept<T extends string>(name: string, values: readonly T[], first: T): Signal<T> {
  const key = `mainspring.${name}`;
  let found: T = first;
  try {
    const text = localStorage.getItem(key) as T;
    if (values.includes(text)) found = text;
  } catch {
    // no storage: it lasts as long as the page
  }
  const chosen = signal(found);
  chosen.subscribe((value) => {
    try {
      localStorage.setItem(key, value);
    } catch {
      // as above
    }
  });
  return chosen;
}

export const THEMES = ["system", "light", "dark"] as const;
export const ZONES = ["schedule", "local", "utc"] as const;
export type Zone = (typeof ZONES)[number];

export const theme = kept("theme", THEMES, "system");
/** Whose time is shown: the schedule's own zone, mine, or UTC. */
export const zone = kept("zone", ZONES, "local");
export const letters = kept("letters", ["on", "off"] as const, "on");

/** What is shown: the theme that was chosen, or that of the system. */
export const shade = signal<"light" | "dark">("light");

export function startPrefs(): void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {
    const next = theme.value === "system" ? (system.matches ? "dark" : "light") : theme.value;
    document.documentElement.dataset.theme = next; // first: what is told of the shade reads colours
    shade.value = next;
  };
  system.addEventListener("change", follow);
  theme.subscribe(follow);
}
