// Starts by the second, the minute or the quarter of an hour as bars, on a log scale: a herd is one tall bar, what is spread a lawn.

interface BarsProps {
  label: string;
  starts: readonly number[];
  /** Of the tallest bar, where several pictures are compared. */
  most?: number;
  /** Places that are marked. */
  own?: ReadonlySet<number>;
}

export function Bars({ label, starts, most = Math.max(...starts), own }: BarsProps) {
  const high = (value: number) => value && 1 + (19 * Math.log1p(value)) / Math.log1p(Math.max(most, 10));
  return (
    <svg viewBox={`0 0 ${starts.length} ${own ? 24 : 20}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {starts.map((value, place) => (
        <>
          <rect x={place + 0.1} y={20 - high(value)} width="0.8" height={high(value)} class={own?.has(place) ? "own" : ""} />
          {own?.has(place) && <rect class="own" x={place} y="21.5" width="1" height="2.5" />}
        </>
      ))}
    </svg>
  );
}
