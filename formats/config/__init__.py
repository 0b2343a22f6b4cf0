"""Config files: the JSON of fastjson, the tables of a broker in it, and property texts."""
