// Groups rows by their names, keys or labels, for the colours of a map.
import { GROUP_COLORS, Layer } from "./points";

type Key = string | number | null;

/** Returns the part of a name in front of its first ":", "/", "|" or "="; "" if the name has none of these. */
function prefixOf(key: Key): string {
  return /^([^:/|=]+)[:/|=]/.exec(String(key ?? ""))?.[1] ?? "";
}

/**
 * Groups rows whose name contains a text, in any case; without a text, by the part of the name in front of a separator.
 * The largest groups have a colour each; all other rows are grey.
 */
export function nameLayer(keys: Key[], text: string): Layer {
  if (text) {
    const wanted = text.toLowerCase();
    const values = keys.map((key) => (key !== null && String(key).toLowerCase().includes(wanted) ? 0 : null));
    return { name: "name", values, groups: [`“${text}” in the name`] };
  }
  const counts = new Map<string, number>();
  const prefixes = keys.map(prefixOf);
  for (const prefix of prefixes) if (prefix) counts.set(prefix, (counts.get(prefix) ?? 0) + 1);
  const largest = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, GROUP_COLORS.length);
  const groups = largest.map(([prefix]) => prefix);
  const numbers = new Map(groups.map((prefix, at) => [prefix, at]));
  return { name: "name", values: prefixes.map((prefix) => numbers.get(prefix) ?? null), groups };
}
