"""The web page: restore a picture in the browser, and see where the network looks."""
