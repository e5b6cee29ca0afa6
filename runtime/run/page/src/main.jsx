// Starts the page.

import { render } from "preact";
import { App, greet } from "./app.jsx";
import { heard, load, navigateTo } from "./conversations.js";
import { theme, useTheme } from "./preferences.js";
import { hear, saveNow } from "./storage.js";
import { get } from "./store.js";

useTheme(theme());
hear(heard);
addEventListener("popstate", () => navigateTo(location.hash));
addEventListener("hashchange", () => navigateTo(location.hash));
// what has come of an answer outlives the page
addEventListener("pagehide", () => Object.keys(get().answering).forEach(id => saveNow(get().conversations[id])));
load().then(() => {
  render(<App />, document.getElementById("page"));
  greet();
});
