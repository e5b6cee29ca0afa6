// Starts the page.

import { render } from "preact";
import { App, greet } from "./app.jsx";
import { heard, keepNow, load, navigateTo } from "./conversations.js";
import { theme, useTheme } from "./preferences.js";
import { hear } from "./storage.js";

useTheme(theme());
hear(heard);
addEventListener("popstate", () => navigateTo(location.hash));
addEventListener("hashchange", () => navigateTo(location.hash));
addEventListener("pagehide", keepNow);
load().then(() => {
  render(<App />, document.getElementById("page"));
  greet();
});
