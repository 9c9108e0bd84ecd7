"""What is shown to people: cards, pages, the live page, drawing. Nothing here trains; only here is Matplotlib used."""
