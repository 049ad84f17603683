// The frame of a page: its title, what can be done here, and what is shown while there is nothing else.

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { Refusal } from "../core/api";
import { liveness } from "../core/live";
import type { Loaded } from "../core/query";
import { Command, withCode } from "./show";

interface PageProps {
  title: string;
  /** Where it belongs: [["Schedules", "schedules"]]. */
  trail?: [string, string][];
  /** Beside the title: a state, a remark. */
  remark?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
}

export function Page({ title, trail = [], remark, actions, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Mainspring`;
  }, [title]);
  return (
    <>
      <header class="page-head">
        <div class="page-title">
          {trail.length > 0 && (
            <nav aria-label="Breadcrumb" class="trail">
              {trail.map(([word, to]) => (
                <a key={to} href={to}>
                  {word}
                </a>
              ))}
            </nav>
          )}
          <h1>{title}</h1>
          {remark && <div class="remark">{remark}</div>}
        </div>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </>
  );
}

/** A titled part of a page. */
export function Section({ title, aside, children, id }: { title: string; aside?: ComponentChildren; children: ComponentChildren; id?: string }) {
  return (
    <section class="section" id={id} aria-label={title}>
      <header class="section-head">
        <h2>{title}</h2>
        {aside && <div class="aside">{aside}</div>}
      </header>
      {children}
    </section>
  );
}

/** What would be here, and the one command that makes it so. */
export function Empty({ title, children, command }: { title: string; children?: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <div>{children}</div>}
      {command && <Command>{command}</Command>}
    </div>
  );
}

/** A refusal in the API's words, with its code and request id; nothing where the frame says for the whole page that no server answers. */
export function Problem({ refusal, retry }: { refusal: Refusal; retry?: () => void }) {
  if (retry && refusal.isPassing && liveness.value.state === "lost") return null;
  return (
    <div class="problem" role="alert">
      <p>{withCode(refusal.message)}</p>
      <p class="quiet">
        {refusal.code}
        {refusal.requestId && <> · request {refusal.requestId}</>}
      </p>
      {retry && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export const Loading = ({ word = "Loading" }: { word?: string }) => (
  <p class="loading" role="status">
    {word} …
  </p>
);

/** What was loaded; before that a quiet line, and a refusal if there was one. What is old stays, with the refusal above. */
export function Show<T>({ of, children }: { of: Loaded<T>; children: (data: T) => ComponentChildren }) {
  return (
    <>
      {of.refusal && <Problem refusal={of.refusal} retry={of.refresh} />}
      {of.data !== null ? children(of.data) : !of.refusal && <Loading />}
    </>
  );
}

/** Names and values, aligned. */
export function Facts({ children, wide = false }: { children: ComponentChildren; wide?: boolean }) {
  return <dl class={wide ? "facts wide" : "facts"}>{children}</dl>;
}

export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  if (children === null || children === undefined || children === "" || children === false) return null;
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}
