# A script around the program, as `npm start` is one.
${PYTHON:-python3} main.py
