"""An artefact's stored bytes beside its source's, before anything is run."""
