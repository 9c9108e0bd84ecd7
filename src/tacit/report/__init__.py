"""Output for people: cards, pages, the live page, figures. Nothing here trains; only this package uses Matplotlib."""
