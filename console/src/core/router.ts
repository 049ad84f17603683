// The address is the state: which page, and in its query every filter, tab, range and selection.

import { signal } from "./signals";

/** Where the console is served, with a slash at its end: "/" or "/ops/mainspring/". */
export const base = typeof document === "undefined" ? "/" : new URL(document.baseURI).pathname;

let address = new URL(typeof location === "undefined" ? "http://localhost/" : location.href);
const below = (): string => address.pathname.slice(base.length).replace(/\/+$/, "");

/** Below the base, without slashes at its ends: "tasks/17". */
export const path = signal(below());
export const query = signal(address.searchParams);

/** Take an address; whether it is that of another page. */
function arrive(at: URL): boolean {
  const isOther = at.pathname !== address.pathname;
  address = at;
  path.value = below();
  query.value = at.searchParams;
  return isOther;
}

export type Names = Record<string, string>;

/** The names in a path if it fits: match("schedules/:name", "schedules/a%2Fb") → { name: "a/b" }. */
export function match(pattern: string, given: string): Names | null {
  const wanted = pattern.split("/");
  const parts = given.split("/");
  if (wanted.length !== parts.length) return null;
  const names: Names = {};
  for (const [place, word] of wanted.entries()) {
    const part = parts[place] ?? "";
    if (word.startsWith(":")) {
      if (!part) return null;
      try {
        names[word.slice(1)] = decodeURIComponent(part);
      } catch {
        return null; // a lone %
      }
    } else if (word !== part) return null;
  }
  return names;
}

export type Params = Record<string, string | number | boolean | null | undefined | readonly (string | number)[]>;

/** link`tasks/${id}` with names encoded; relative to the base. */
export function link(parts: TemplateStringsArray, ...names: (string | number)[]): string {
  return parts.reduce((all, part, place) => all + encodeURIComponent(String(names[place - 1] ?? "")) + part);
}

/** A link with a query: withQuery("tasks", { state: "failed" }). Empty values are left out. */
export function withQuery(to: string, params: Params): string {
  const found = search(params);
  return found ? `${to}?${found}` : to;
}

export function search(params: Params): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === null || value === undefined || value === "" || value === false) continue;
    for (const one of Array.isArray(value) ? value : [value]) given.append(name, String(one));
  }
  return given.toString();
}

/** Go to a page below the base. */
export function go(to: string, how: { replace?: boolean } = {}): void {
  const url = new URL(to, new URL(base, location.href));
  if (url.href === location.href) return;
  if (how.replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  if (arrive(url) && !how.replace) {
    scrollTo(0, 0);
    focusContent();
  }
}

/** Announce the new page to screen readers. */
function focusContent(): void {
  requestAnimationFrame(() => document.getElementById("content")?.focus({ preventScroll: true }));
}

/** Change some of the query and leave the rest: what is null or empty is taken out. */
export function setQuery(changes: Params, how: { replace?: boolean } = { replace: true }): void {
  const now = new URLSearchParams(query.value);
  for (const name of Object.keys(changes)) now.delete(name);
  for (const [name, value] of new URLSearchParams(search(changes))) now.append(name, value);
  const text = now.toString();
  go(`${address.pathname}${text ? `?${text}` : ""}`, how);
}

/** Follow the browser's own navigation, and clicks on links of ours. */
export function startRouter(): void {
  addEventListener("popstate", () => {
    if (arrive(new URL(location.href))) focusContent();
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const anchor = (event.target as Element).closest?.("a[href]") as HTMLAnchorElement | null;
    if (!anchor || anchor.target || anchor.hasAttribute("download")) return;
    const url = new URL(anchor.href);
    const isOurs = url.origin === location.origin && url.pathname.startsWith(base) && !url.hash;
    if (!isOurs || /^(api|metrics|healthz|readyz|openapi\.json|static)(\/|$)/.test(url.pathname.slice(base.length))) return;
    event.preventDefault();
    go(url.pathname + url.search);
  });
}
