"""What a report says about the scores of a cell beside their mean: what counts as wrong, grades, agreement."""
