"""Print the reference page of the map: `python -m headgate.map`."""

from headgate.map.trees import page

if __name__ == "__main__":
    print(page(), end="")
