"""Files as samples: `folder` watches a folder, `readers` reads a file by its kind.

`image_files` reads arrays, and PNG files that are the very sample of the model.
"""
