"""`python -m headgate.map`: the reference page."""

from headgate.map.page import page

if __name__ == "__main__":
    print(page(), end="")
