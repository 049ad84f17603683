// Failures with equal errors as one: how often, since when, and the tasks behind them.

import { link } from "../core/router";
import { grouped } from "../core/failures";
import type { Failed } from "../core/failures";
import { Glyph } from "./icons";
import { Instant, many } from "./show";

const NAMED = 8; // tasks of a group that are linked

export function Failures({ tasks }: { tasks: readonly Failed[] }) {
  return (
    <ul class="failures">
      {grouped(tasks).map(({ key, text, code, isMixed, tasks: its }) => (
        <li key={key} class="card">
          <p class="failure-text tone-bad">
            <Glyph name="cross" />
            <code>{text}</code>
          </p>
          <p class="quiet">
            {many(its.length, "task")}
            {isMixed && ", alike but for numbers"}
            {code && <> · {code}</>} · last <Instant at={its[0]?.finished_at} relative />
          </p>
          <p class="failure-ids">
            {its.slice(0, NAMED).map(({ id }) => (
              <a key={id} href={link`tasks/${id}`}>
                {id}
              </a>
            ))}
            {its.length > NAMED && <span class="quiet">and {its.length - NAMED} more</span>}
          </p>
        </li>
      ))}
    </ul>
  );
}
