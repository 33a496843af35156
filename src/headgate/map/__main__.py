"""Print the reference page of the map: `python -m headgate.map`."""

from headgate.map.page import page

if __name__ == "__main__":
    print(page(), end="")
