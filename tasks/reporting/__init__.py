"""Reports: from the results of a run to pages, Markdown, CSV files and plots.

Belongs here: what a report says (``document``), how results are chosen and compared (``results``, ``exhibits``), the
``tables`` and ``notes`` below them, the ``wording`` of settings, the ``terms`` that pages explain, the ``targets`` of
links into MLflow, and how it all looks (``page`` and its ``templates``, ``plots``, ``typesetting``, ``markdown``,
``terminal``). Does not belong here: training, accounting, or reading a trial's folder.

Doors: ``files`` writes a report, ``index`` the list of all reports, ``data_card`` the page of a prepared dataset,
``terminal`` prints a report, ``tracked`` is what it logs to MLflow, ``tables`` and ``notes`` have the tables and
caveats below one, ``targets`` the links into MLflow. Exhibits use ``document``, ``results``, ``plots``, ``series`` and
``wording``, and draw with ``axes`` and ``svg``. Pages of other rooms use ``page``, ``svg`` and ``terms`` besides.
"""
