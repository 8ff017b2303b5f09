// Sets the theme that was chosen before, in time for the first paint. Without a choice the system's is taken.
try {
  const chosen = localStorage.getItem("skerry-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system's theme */ }
