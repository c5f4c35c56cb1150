# The page and the command line on a CPU:
#   docker build -t nlrn .
#   docker run --rm -p 127.0.0.1:8000:8000 nlrn    # the page: http://localhost:8000
#   docker run --rm --user $(id -u):$(id -g) -v "$PWD:/pictures" nlrn denoise photo.png
FROM python:3.13-slim

# Its own step: torch stays when only the package changes.
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu

COPY pyproject.toml README.md LICENSE /nlrn/
COPY src /nlrn/src
RUN cd /nlrn && pip install --no-cache-dir '.[web]' && rm -r /nlrn

RUN useradd --create-home nlrn
USER nlrn
WORKDIR /pictures
EXPOSE 8000
ENTRYPOINT ["nlrn"]
CMD ["web", "--host", "0.0.0.0", "--no-browser"]
