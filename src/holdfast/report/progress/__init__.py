"""Progress of a run for people: `view` has the facts, `rates` the speed, `lines` the text, `page` the HTML."""
