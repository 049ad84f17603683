// Glyphs: states by shape, and what buttons do. Their drawings are in index.html.

import type { Look } from "../core/states";

const symbol = (of: string, name: string, size: number) => (
  <svg class={of} width={size} height={size} aria-hidden="true">
    <use href={`#${of}-${name}`} />
  </svg>
);

export const Glyph = ({ name }: { name: Look["glyph"] }) => symbol("glyph", name, 12);

export type IconName = "overview" | "schedules" | "tasks" | "jobs" | "timeline" | "calendar" | "batches" | "agents" | "daemons" | "cluster" | "alerts" | "activity" | "access" | "settings" | "api" | "search" | "close" | "menu" | "copy" | "check" | "down" | "right" | "left" | "external" | "sun" | "moon" | "contrast" | "user";

export const Icon = ({ name }: { name: IconName }) => symbol("icon", name, 16);
