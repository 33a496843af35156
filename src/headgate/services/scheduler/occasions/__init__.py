"""Watch messages and changes of objects that start pipelines, one scheduler per connection, as for forges."""
