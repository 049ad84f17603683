"""`mainspring plan | apply | export`: files are read and written here; what they mean is in model/manifests/."""
