// Sign-in with a caller's token.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { checked, send } from "../api";
import { Problem } from "../parts";

export function SignIn({ onDone }: { onDone: () => void }): JSX.Element {
  const [token, setToken] = useState("");
  const [error, setError] = useState<Error>();
  const [isBusy, setBusy] = useState(false);
  const onSubmit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      await checked(await send("POST", "/console/session", JSON.stringify({ token })));
      onDone();
    } catch (caught) {
      setError(caught as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="narrow">
      <h1>Sign in</h1>
      <form class="card" onSubmit={(event) => void onSubmit(event)} aria-label="Sign in">
        <label class="field">
          <span>Token</span>
          <input
            type="password"
            autocomplete="current-password"
            required
            value={token}
            onInput={(event) => {
              setToken(event.currentTarget.value);
              setError(undefined);
            }}
          />
        </label>
        <Problem error={error} />
        <button class="main" disabled={isBusy}>
          Sign in
        </button>
        <p class="faint">Use the token of a caller in the server's --auth_config. The browser keeps a cookie, not the token.</p>
      </form>
    </main>
  );
}
