// Hooks: data that is loaded and polled, and the page's address.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Refusal } from "./api";

// Refusals that the same request gets again: of what it asks for, of its caller's rights, of what the server can.
const LASTING = [400, 403, 501];

export interface Loaded<T> {
  data: T | undefined;
  error: Error | undefined;
  isLoading: boolean;
  again: () => void;
}

/**
 * Loads data when `key` changes, and again every `pollMs` while the page is visible (0: never). The old data stays until
 * the new data is there; data of an older key goes at once. After a lasting refusal it asks no more: each one is counted.
 */
export function useLoad<T>(key: string, load: (signal: AbortSignal) => Promise<T>, pollMs = 0): Loaded<T> {
  const [state, setState] = useState<{ key: string; data?: T; error?: Error; isLoading: boolean }>({
    key: "",
    isLoading: true,
  });
  const [turn, setTurn] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    const controller = new AbortController();
    let timer = 0;
    const run = async (): Promise<void> => {
      let isLasting = false;
      try {
        const data = await latest.current(controller.signal);
        if (!controller.signal.aborted) setState({ key, data, isLoading: false });
      } catch (error) {
        if (controller.signal.aborted) return;
        isLasting = error instanceof Refusal && LASTING.includes(error.status);
        setState((old) => {
          const kept = old.key === key && old.data !== undefined ? { data: old.data } : {};
          return { key, ...kept, error: error as Error, isLoading: false };
        });
      }
      if (pollMs > 0 && !isLasting && !controller.signal.aborted) timer = window.setTimeout(next, pollMs);
    };
    const next = (): void => {
      if (document.hidden) timer = window.setTimeout(next, pollMs);
      else void run();
    };
    void run();
    return () => {
      controller.abort();
      window.clearTimeout(timer);
    };
  }, [key, turn, pollMs]);
  const again = useCallback(() => setTurn((old) => old + 1), []);
  const isOfKey = state.key === key;
  return {
    data: isOfKey ? state.data : undefined,
    error: isOfKey ? state.error : undefined,
    isLoading: !isOfKey || state.isLoading,
    again,
  };
}

export type Params = Record<string, string>;

/** The page and its parameters in the address, such as #/tables?model=m. */
export function readAddress(): { page: string; params: Params } {
  const [page = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { page, params: Object.fromEntries(new URLSearchParams(query)) };
}

/** Writes an address that readAddress() reads; parameters without a value are left out. */
export function address(page: string, params: Params = {}): string {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "")).toString();
  return `#/${page}${query ? `?${query}` : ""}`;
}

/** Changes parameters of the address in place, without a step for the browser's "back". */
export function setParams(params: Params): void {
  const now = readAddress();
  history.replaceState(null, "", address(now.page, { ...now.params, ...params }));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Follows the address. */
export function useAddress(): { page: string; params: Params } {
  const [now, setNow] = useState(readAddress);
  useEffect(() => {
    const onChange = (): void => setNow(readAddress());
    window.addEventListener("hashchange", onChange);
    return () => window.removeEventListener("hashchange", onChange);
  }, []);
  return now;
}
