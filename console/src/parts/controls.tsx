// Buttons, menus, dialogs, tabs: what I may not do is greyed and says why; what takes time says so and works once.

import type { ComponentChildren } from "preact";
import { signal } from "../core/signals";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { whyNot } from "../core/api";
import type { Rank } from "../core/api";
import { dismiss, refuse, tellRefusal, toasts } from "../core/actions";
import { query, setQuery } from "../core/router";
import { Icon } from "./icons";
import type { IconName } from "./icons";
import { withCode } from "./show";

interface ActionProps {
  children: ComponentChildren;
  run: () => unknown;
  /** The role that it needs. */
  needs?: Rank;
  /** Why it is not possible now, for any role. */
  refused?: string | null | undefined;
  kind?: "plain" | "main" | "danger" | "link" | "icon";
  icon?: IconName;
  label?: string;
}

const TWICE = 700; // ms within which two clicks on one button are one

/** A button that works once at a time; greyed with the reason when it may not be pressed. */
export function Action({ children, run, needs, refused, kind = "plain", icon, label }: ActionProps) {
  const [isBusy, setBusy] = useState(false);
  const reason = (needs && whyNot(needs)) ?? refused ?? null;
  const id = useId();
  const pressed = useRef({ isBusy: false, at: -Infinity });
  const press = async (event: MouseEvent) => {
    // the second click of a double click is no second wish, however soon the first was done
    if (pressed.current.isBusy || (event.detail > 1 && event.timeStamp - pressed.current.at < TWICE)) return;
    pressed.current = { isBusy: true, at: event.timeStamp };
    if (reason) pressed.current.isBusy = false;
    if (reason) return refuse(reason);
    setBusy(true);
    try {
      await run();
    } catch (error) {
      tellRefusal(error);
    } finally {
      pressed.current.isBusy = false;
      setBusy(false);
    }
  };
  return (
    <>
      <button
        type="button"
        class={`button ${kind}`}
        aria-disabled={reason !== null || isBusy}
        aria-busy={isBusy}
        aria-describedby={reason ? id : undefined}
        aria-label={label}
        title={reason ?? label}
        onClick={press}
        onKeyDown={(event) => event.repeat && event.key !== "Tab" && event.preventDefault()}
      >
        {icon && <Icon name={icon} />}
        {children}
      </button>
      {reason && (
        <span id={id} class="hidden">
          {reason}
        </span>
      )}
    </>
  );
}

/** A few choices of which one holds: 1 h · 24 h · 30 d. */
export function Choice<T extends string>({ label, of, value, set }: { label: string; of: readonly (readonly [T, string])[]; value: T; set: (value: T) => void }) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {of.map(([name, word]) => (
        <button key={name} type="button" aria-pressed={name === value} onClick={() => set(name)}>
          {word}
        </button>
      ))}
    </div>
  );
}

/** A choice that is in the address by its name; what is chosen without that is not. */
export function Switch({ label, name, of, first = of[0]![0] }: { label: string; name: string; of: readonly (readonly [string, string])[]; first?: string }) {
  const given = query.value.get(name);
  const value = of.some(([one]) => one === given) ? given! : first;
  return <Choice label={label} of={of} value={value} set={(value) => setQuery({ [name]: value === first ? null : value })} />;
}

/** Tabs whose choice is in the address. */
export function Tabs({ of, name = "tab" }: { of: { id: string; word: string; count?: number | undefined; content: () => ComponentChildren }[]; name?: string }) {
  const chosen = of.find(({ id }) => id === query.value.get(name)) ?? of[0];
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step || !chosen) return;
    const place = (of.indexOf(chosen) + step + of.length) % of.length;
    setQuery({ [name]: place ? (of[place]?.id ?? null) : null });
    list.current?.querySelectorAll("button")[place]?.focus();
  };
  useLayoutEffect(() => {
    // on a phone the last ones are out of sight: only the row of tabs moves, not the page
    const [box, tab] = [list.current, list.current?.querySelector("[aria-selected=true]")].map((one) => one?.getBoundingClientRect());
    if (box && tab && tab.right > box.right) list.current!.scrollLeft += tab.right - box.right;
  }, [chosen?.id]);
  return (
    <div class="tabs">
      <div role="tablist" ref={list} onKeyDown={move}>
        {of.map((tab, place) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`tab-${tab.id}`}
            aria-selected={tab === chosen}
            aria-controls={`panel-${tab.id}`}
            tabIndex={tab === chosen ? 0 : -1}
            onClick={() => setQuery({ [name]: place ? tab.id : null })}
          >
            {tab.word}
            {tab.count !== undefined && <span class="badge">{tab.count.toLocaleString("en-GB")}</span>}
          </button>
        ))}
      </div>
      {chosen && (
        <div role="tabpanel" id={`panel-${chosen.id}`} aria-labelledby={`tab-${chosen.id}`}>
          {chosen.content()}
        </div>
      )}
    </div>
  );
}

/** The dialogs that are open, the one on top last. */
const layers = signal<string[]>([]);

/** A modal dialog. Escape and a click beside it close it. */
export function Dialog({ title, close, children, wide = false }: { title: string; close: () => void; children: ComponentChildren; wide?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  // before the next key comes: what is typed at once is typed into it
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    const element = dialog.current;
    element?.showModal();
    layers.value = [...layers.value, id];
    return () => {
      layers.value = layers.value.filter((one) => one !== id);
      // closed by Escape, the browser has given the focus back, and it may have moved on
      if (document.activeElement === document.body || element?.contains(document.activeElement)) before?.focus?.();
    };
  }, []);
  return (
    <dialog ref={dialog} class={wide ? "wide" : ""} aria-labelledby={id} onClose={close} onClick={(event) => event.target === dialog.current && close()}>
      <header class="dialog-head">
        <h2 id={id}>{title}</h2>
        <button type="button" class="icon-button" aria-label="Close" onClick={close}>
          <Icon name="close" />
        </button>
      </header>
      {children}
      <Toasts within={id} />
    </dialog>
  );
}

/** Ask before something that cannot be undone; beyond a hundred things, or for a deletion, by typing what is affected. */
export function Confirm({ title, children, type, word, run, close }: { title: string; children?: ComponentChildren; type?: string; word: string; run: () => unknown; close: () => void }) {
  const [typed, setTyped] = useState("");
  const id = useId();
  const refused = type !== undefined && typed !== type ? `type ${type} first` : null;
  const isRunning = useRef(false);
  const once = async () => {
    if (isRunning.current) return;
    isRunning.current = true;
    try {
      await run();
      close();
    } finally {
      isRunning.current = false;
    }
  };
  return (
    <Dialog title={title} close={close}>
      <form
        method="dialog"
        onSubmit={(event) => {
          event.preventDefault();
          if (!refused) void once().catch(tellRefusal);
        }}
      >
        {children}
        {type !== undefined && (
          <p class="field">
            <label for={id}>
              Type <code>{type}</code> to confirm
            </label>
            <input id={id} autoComplete="off" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          </p>
        )}
        <footer class="dialog-foot">
          <button type="button" class="button plain" onClick={close}>
            Back
          </button>
          <Action kind="danger" refused={refused} run={once}>
            {word}
          </Action>
        </footer>
      </form>
    </Dialog>
  );
}

/** What was done and what was refused, at the edge of the page; within the dialog on top, because nothing lies above one. */
export function Toasts({ within }: { within?: string }) {
  if (layers.value.at(-1) !== within) return null;
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <div key={one.id} class={`toast ${one.kind}`}>
          <div>
            <p>{withCode(one.text)}</p>
            {one.detail && <p class="quiet">{one.detail}</p>}
          </div>
          {one.undo && (
            <Action
              kind="link"
              run={async () => {
                await one.undo?.();
                dismiss(one.id);
              }}
            >
              Undo
            </Action>
          )}
          <button type="button" class="icon-button" aria-label="Dismiss" onClick={() => dismiss(one.id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}

/** A labelled field of a form, with what is wrong with it below. */
export function Field({ label, hint, fault, children }: { label: string; hint?: ComponentChildren; fault?: string | null | undefined; children: (id: string, described: string | undefined) => ComponentChildren }) {
  const id = useId();
  const described = hint || fault ? `${id}-hint` : undefined;
  return (
    <div class={fault ? "field faulty" : "field"}>
      <label for={id}>{label}</label>
      {children(id, described)}
      {described && (
        <p class="hint" id={described}>
          {fault ?? hint}
        </p>
      )}
    </div>
  );
}

/** Choices of which any number holds, as chips. */
export function Chips({ of, held, set, show }: { of: readonly string[]; held: readonly string[]; set: (values: string[], flipped: string) => void; show?: (value: string) => ComponentChildren }) {
  return of.map((one) => (
    <button key={one} type="button" class="chip" aria-pressed={held.includes(one)} onClick={() => set(held.includes(one) ? held.filter((other) => other !== one) : [...held, one], one)}>
      {show ? show(one) : one}
    </button>
  ));
}
