"""Is the agent doing worse, and is it the world or the model that changed?

``outcomes`` what detectors look at · ``reference`` an average that does not swallow drift · ``detectors`` ADWIN and
Page-Hinkley · ``verdict`` world or model · ``monitor`` the phases an environment goes through · ``scan`` the job.
"""
