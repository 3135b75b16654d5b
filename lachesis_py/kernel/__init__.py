"""The only room that touches the OS."""
