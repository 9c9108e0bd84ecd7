"""Cards, labels and drawing primitives: what is shown to people. Nothing here trains; only here is Matplotlib used."""
