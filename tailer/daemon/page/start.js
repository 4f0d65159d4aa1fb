recall();
poll();
pollHistory();
