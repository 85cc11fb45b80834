"""x."""

from loadmaster.api.server.pages.frame import page_router

router = page_router()
