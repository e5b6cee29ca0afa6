// Small choices that must be known before the page is first drawn.

const read = name => {
  try {
    return localStorage.getItem(`flashplan.${name}`);
  } catch {
    return null;
  }
};

export function keep(name, value) {
  try {
    localStorage.setItem(`flashplan.${name}`, value);
  } catch {
    // the choice lasts until the page is closed
  }
}

export const isOpen = (name, otherwise) => (read(name) ?? String(otherwise)) === "true";

/** "auto", "light" or "dark". */
export const theme = () => read("theme") ?? "auto";

export function useTheme(theme) {
  keep("theme", theme);
  document.documentElement.dataset.theme = theme;
}
